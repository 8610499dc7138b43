-- Say that a node lives. Follows room.lua. KEYS: node hash. ARGV from 2 on: node id, token, now
-- Returns 0 when another holds the id, 1, or 2 when the node was closed and is open again: there is room that nobody was given.
local n = redis.call('HMGET', KEYS[1], 'token', 'state', 'pool')
if n[1] ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], 'heartbeat', ARGV[4])
if n[2] ~= 'active' or redis.call('ZSCORE', key('free_cpus', n[3] or ''), ARGV[2]) then return 1 end
open_node(ARGV[2])
return redis.call('ZSCORE', key('free_cpus', n[3] or ''), ARGV[2]) and 2 or 1
