-- Forget a node that is silent and holds nothing. Follows room.lua.
-- KEYS: node hash, node sandboxes, node in-flight, all nodes, node leases, node images, node stopped, node uses
-- ARGV from 2 on: node id, heartbeat before which it is forgotten. Returns 1 if forgotten.
local node = redis.call('HMGET', KEYS[1], 'heartbeat', 'pool')
if tonumber(node[1] or '0') >= tonumber(ARGV[3]) then return 0 end
if redis.call('SCARD', KEYS[2]) > 0 or redis.call('ZCARD', KEYS[3]) > 0 then return 0 end
close_node(ARGV[2], node[2] or '')
for _, image in ipairs(redis.call('SMEMBERS', KEYS[6])) do redis.call('SREM', key('image_nodes', image), ARGV[2]) end
redis.call('DEL', KEYS[1], KEYS[5], KEYS[6], KEYS[7], KEYS[8])
redis.call('SREM', KEYS[4], ARGV[2])
return 1
