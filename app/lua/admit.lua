-- Open a node for new sandboxes, or close it (drain). Follows room.lua. KEYS: node hash. ARGV from 2 on: node id, state
-- Returns 1, or 0 when there is no such node.
local pool = redis.call('HMGET', KEYS[1], 'cpus', 'pool')
if not pool[1] then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[3])
if ARGV[3] == 'active' then open_node(ARGV[2]) else close_node(ARGV[2], pool[2] or '') end
return 1
