-- Move a sandbox to another state if it is in one of the expected ones; the only script that changes a state.
-- Follows room.lua, line.lua and stock.lua (whose ARGV[4..7] are empty here: nobody is placed). KEYS: sandbox
-- ARGV from 8 on: sandbox id, expected states joined by commas, new state, event, expected start call or '', only_expired, only_waiting,
--       seconds a finished record is kept, '1' when nobody asked for the end (its container is left behind),
--       only_stock ('1': only while nobody has taken it from its node's pool), then field/value pairs to set
-- Returns 'ok', 'freed' (ok, and somebody waits for what it gave back), 'missing', 'superseded',
-- 'busy' (only_expired, but renewed or at work; only_waiting, but placed; only_stock, but taken), or the state that stood in the way.
local id, to = ARGV[8], ARGV[10]
local box = redis.call('HMGET', KEYS[1], 'state', 'node', 'lease', 'cpus', 'memory', 'start_call', 'inflight',
  'expires', 'history', 'line', 'started', 'retention', 'stock')
local state, node, mark = box[1], box[2], box[13] or ''
if not state then return 'missing' end
if ARGV[12] ~= '' and ARGV[12] ~= box[6] then return 'superseded' end
if not string.find(',' .. ARGV[9] .. ',', ',' .. state .. ',', 1, true) then return state end
if ARGV[13] == '1' and (tonumber(box[7]) > 0 or tonumber(box[8]) <= 0 or tonumber(box[8]) > now) then return 'busy' end
if ARGV[14] == '1' and node ~= '' then return 'busy' end
if ARGV[17] == '1' and mark == '' then return 'busy' end
local entry = cjson.encode({from_state = state, to_state = to, event = ARGV[11], timestamp = now})
local history = box[9]
if history == '' or not history then history = entry else history = history .. ',' .. entry end
redis.call('HSET', KEYS[1], 'state', to, 'history', history, unpack(ARGV, 18))
if to == 'running' then
  local lease = tonumber(box[3])
  redis.call('PERSIST', KEYS[1])
  redis.call('HSET', KEYS[1], 'started', ARGV[2])
  if lease > 0 then
    local expires = string.format('%.3f', now + lease)
    redis.call('HSET', KEYS[1], 'expires', expires)
    redis.call('ZADD', key('node_leases', node), expires, id)
  end
  if mark ~= '' then shelve(node, id, mark) end
  return 'ok'
end
if mark ~= '' then unshelve(node, id, mark) end
if to == 'deleted' then
  redis.call('HSET', KEYS[1], 'deleted', ARGV[2])
  redis.call('ZREM', key('node_stopped', node), id)
  redis.call('EXPIRE', KEYS[1], ARGV[15])
  return 'ok'
end
redis.call('HSET', KEYS[1], 'stopped', ARGV[2], 'stop_event', ARGV[11])
-- Of what has run, the container is kept for a while; the record outlives it.
local kept = tonumber(box[11] or '0') > 0 and tonumber(box[12] or '0') or 0
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[15]) + math.ceil(kept))
local freed
if node == '' then
  freed = leave_line(id, box[10] or '')
else
  if kept > 0 or ARGV[16] == '1' then
    redis.call('ZADD', key('node_stopped', node), string.format('%.3f', now + kept), id)
  end
  redis.call('ZREM', key('node_leases', node), id)
  freed = give_room_back(node, id, tonumber(box[4]), tonumber(box[5]))
end
return freed and redis.call('ZCARD', names.lines) > 0 and 'freed' or 'ok'
