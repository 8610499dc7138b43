-- Register a node, or take over an id whose holder is silent. Follows room.lua. KEYS: node hash, all nodes
-- ARGV from 2 on: node id, token, now, lost_before, then field/value pairs. Returns 1, or 0 when a living other holds the id.
-- Reservations survive: the node's sandboxes are still there when its worker comes back.
local held = redis.call('HMGET', KEYS[1], 'token', 'heartbeat', 'pool')
if held[1] and held[1] ~= '' and held[1] ~= ARGV[3] and tonumber(held[2]) >= tonumber(ARGV[5]) then return 0 end
if held[2] then close_node(ARGV[2], held[3] or '') end
redis.call('HSETNX', KEYS[1], 'used_cpus', 0)
redis.call('HSETNX', KEYS[1], 'used_memory', 0)
redis.call('HSET', KEYS[1], 'token', ARGV[3], 'heartbeat', ARGV[4], unpack(ARGV, 6))
redis.call('HSETNX', KEYS[1], 'state', 'active')
redis.call('SADD', KEYS[2], ARGV[2])
open_node(ARGV[2])
return 1
