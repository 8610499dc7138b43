-- Move a sandbox to another state if it is in one of the expected ones; the only script that changes a state.
-- KEYS: sandbox
-- ARGV: sandbox id, expected states joined by commas, new state, event, now,
--       expected start call or '', only_expired, seconds a finished record is kept,
--       template of node hash, of node sandboxes, of node leases, channel, template of node stopped,
--       '1' when nobody asked for the end (its container is left behind), then field/value pairs to set
-- Returns 'ok', 'missing', 'busy' (only_expired, but renewed or at work), 'superseded' or the state that stood in the way.
local box = redis.call('HMGET', KEYS[1], 'state', 'node', 'lease', 'cpus', 'memory', 'start_call', 'inflight',
  'expires', 'history', 'started', 'retention')
local state, node = box[1], box[2]
if not state then return 'missing' end
if ARGV[6] ~= '' and ARGV[6] ~= box[6] then return 'superseded' end
if not string.find(',' .. ARGV[2] .. ',', ',' .. state .. ',', 1, true) then return state end
local now, to = tonumber(ARGV[5]), ARGV[3]
if ARGV[7] == '1' and (tonumber(box[7]) > 0 or tonumber(box[8]) <= 0 or tonumber(box[8]) > now) then return 'busy' end
local function named(template) return (string.gsub(template, '%*', node)) end
local entry = cjson.encode({from_state = state, to_state = to, event = ARGV[4], timestamp = now})
local history = box[9]
if history == '' or not history then history = entry else history = history .. ',' .. entry end
redis.call('HSET', KEYS[1], 'state', to, 'history', history, unpack(ARGV, 15))
if to == 'running' then
  local lease = tonumber(box[3])
  redis.call('PERSIST', KEYS[1])
  redis.call('HSET', KEYS[1], 'started', ARGV[5])
  if lease > 0 then
    local expires = string.format('%.3f', now + lease)
    redis.call('HSET', KEYS[1], 'expires', expires)
    redis.call('ZADD', named(ARGV[11]), expires, ARGV[1])
  end
  return 'ok'
end
if to == 'deleted' then
  redis.call('HSET', KEYS[1], 'deleted', ARGV[5])
  redis.call('ZREM', named(ARGV[13]), ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[8])
  return 'ok'
end
redis.call('HSET', KEYS[1], 'stopped', ARGV[5], 'stop_event', ARGV[4])
-- Of what has run, the container is kept for a while; the record outlives it.
local kept = tonumber(box[10] or '0') > 0 and tonumber(box[11] or '0') or 0
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[8]) + math.ceil(kept))
if kept > 0 or ARGV[14] == '1' then redis.call('ZADD', named(ARGV[13]), string.format('%.3f', now + kept), ARGV[1]) end
redis.call('ZREM', named(ARGV[11]), ARGV[1])
-- Membership in the node's set is the reservation: whoever takes the id out gives the capacity back, and no one twice.
if redis.call('SREM', named(ARGV[10]), ARGV[1]) == 1 then
  redis.call('HINCRBY', named(ARGV[9]), 'used_cpus', -tonumber(box[4]))
  redis.call('HINCRBY', named(ARGV[9]), 'used_memory', -tonumber(box[5]))
  redis.call('PUBLISH', ARGV[12], 'freed')
end
return 'ok'
