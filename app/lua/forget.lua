-- Forget a node that is silent and holds nothing but what is in stock there. Follows room.lua and stock.lua.
-- KEYS: node hash, node sandboxes, node in-flight, all nodes, node leases, node images, node stopped, node uses
-- ARGV from 2 on: node id, heartbeat before which it is forgotten. Returns 1 if forgotten.
local node = redis.call('HMGET', KEYS[1], 'heartbeat', 'pool')
if tonumber(node[1] or '0') >= tonumber(ARGV[3]) then return 0 end
if redis.call('SCARD', KEYS[2]) > 0 or redis.call('ZCARD', KEYS[3]) > 0 then return 0 end
close_node(ARGV[2], node[2] or '')
for _, image in ipairs(redis.call('SMEMBERS', KEYS[6])) do redis.call('SREM', key('image_nodes', image), ARGV[2]) end
local stock = redis.call('HGETALL', key('node_stock', ARGV[2]))
for i = 1, #stock, 2 do
  unshelve(ARGV[2], stock[i], stock[i + 1])
  redis.call('DEL', key('sandbox', stock[i]))
end
redis.call('DEL', KEYS[1], KEYS[5], KEYS[6], KEYS[7], KEYS[8])
redis.call('SREM', KEYS[4], ARGV[2])
return 1
