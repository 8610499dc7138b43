-- Forget a node that is silent and holds nothing. KEYS: node hash, node sandboxes, node in-flight, all nodes, node leases,
-- node stopped
-- ARGV: node id, heartbeat before which it is forgotten. Returns 1 if forgotten.
local beat = tonumber(redis.call('HGET', KEYS[1], 'heartbeat') or '0')
if beat >= tonumber(ARGV[2]) then return 0 end
if redis.call('SCARD', KEYS[2]) > 0 or redis.call('ZCARD', KEYS[3]) > 0 then return 0 end
redis.call('DEL', KEYS[1], KEYS[5], KEYS[6])
redis.call('SREM', KEYS[4], ARGV[1])
return 1
