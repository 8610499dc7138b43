-- Register a node, or take over an id whose holder is silent. KEYS: node hash, all nodes
-- ARGV: node id, token, now, lost_before, then field/value pairs. Returns 1, or 0 when a living other holds the id.
-- Reservations survive: the node's sandboxes are still there when its worker comes back.
local held = redis.call('HMGET', KEYS[1], 'token', 'heartbeat')
if held[1] and held[1] ~= '' and held[1] ~= ARGV[2] and tonumber(held[2]) >= tonumber(ARGV[4]) then return 0 end
redis.call('HSETNX', KEYS[1], 'used_cpus', 0)
redis.call('HSETNX', KEYS[1], 'used_memory', 0)
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'heartbeat', ARGV[3], unpack(ARGV, 5))
redis.call('HSETNX', KEYS[1], 'state', 'active')
redis.call('SADD', KEYS[2], ARGV[1])
return 1
