-- Put a start that its node cannot carry out back in line, before those who wait there, and close that node for a while.
-- Follows room.lua and line.lua. KEYS: sandbox. ARGV from 8 on: sandbox id, call id, node, until when the node takes nothing new
-- Returns 1, or 0 when the start is not that node's any more, or was put back as often as it may be.
-- How often that is: a start that fills every disk, or says so, must not close the whole fleet.
local MOST = 2
local id, call, node = ARGV[8], ARGV[9], ARGV[10]
local box = redis.call('HMGET', KEYS[1], 'state', 'node', 'start_call', 'cpus', 'memory', 'line')
if box[1] ~= 'pending' or box[2] ~= node or box[3] ~= call then return 0 end
if redis.call('HINCRBY', key('call', call), 'displaced', 1) > MOST then return 0 end
redis.call('HSET', key('node', node), 'full_until', ARGV[11])
close_node(node, redis.call('HGET', key('node', node), 'pool') or '')
give_room_back(node, id, tonumber(box[4]), tonumber(box[5]))
redis.call('ZREM', key('node_inflight', node), call)
redis.call('HSET', KEYS[1], 'node', '', 'host_name', '', 'host_ip', '', 'runtime', '', 'container', '{}')
redis.call('HDEL', KEYS[1], 'phase:image_pull', 'phase:docker_run')
local give_up = (tonumber(redis.call('HGET', key('call', call), 'deadline') or '') or now + GRACE) - GRACE
redis.call('HSET', key('call', call), 'node', '', 'state', 'pending', 'deadline', string.format('%.3f', give_up))
local line = box[6] or ''
local first = redis.call('ZRANGE', key('line', line), 0, 0, 'WITHSCORES')
join_line(id, line, give_up)
if first[1] then
  redis.call('ZADD', key('line', line), tonumber(first[2]) - 1, id)
  note_head(line)
end
return 1
