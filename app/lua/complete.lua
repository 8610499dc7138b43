-- Answer a call, once. The first writer wins; everything that the call held is given back in the same step.
-- KEYS: call
-- ARGV: call id, envelope, now, ttl, only_pending, channel, largest envelope that rides in the message,
--       template of sandbox hash, of node leases, of node in-flight, optionally the output
-- Returns {route, created, started or ''} when this envelope became the answer, 0 when there was one already (or no such call).
local call = redis.call('HMGET', KEYS[1], 'state', 'node', 'sandbox', 'counted', 'route', 'created', 'started')
local state, node, id, counted = call[1], call[2], call[3], call[4]
if not state or state == 'done' then return 0 end
if ARGV[5] == '1' and state ~= 'pending' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'done', 'envelope', ARGV[2], 'finished', ARGV[3])
if ARGV[11] then redis.call('HSET', KEYS[1], 'output', ARGV[11]) end
if redis.call('HDEL', KEYS[1], 'bulk_apart') == 1 then redis.call('DEL', KEYS[1] .. ':bulk') end
redis.call('HDEL', KEYS[1], 'body', 'bulk')
redis.call('EXPIRE', KEYS[1], ARGV[4])
if node and node ~= '' then
  redis.call('ZREM', (string.gsub(ARGV[10], '%*', node)), ARGV[1])
end
if counted and counted ~= '' then
  local key = (string.gsub(ARGV[8], '%*', id))
  local box = redis.call('HMGET', key, 'start_call', 'state', 'lease', 'inflight')
  if box[1] == counted then
    local lease, inflight = tonumber(box[3]), math.max(0, tonumber(box[4]) - 1)
    if box[2] ~= 'running' or lease <= 0 then
      redis.call('HSET', key, 'inflight', inflight)
    else
      local expires = string.format('%.3f', tonumber(ARGV[3]) + lease)
      redis.call('HSET', key, 'inflight', inflight, 'expires', expires)
      redis.call('ZADD', (string.gsub(ARGV[9], '%*', node)), expires, id)
    end
  end
end
if #ARGV[2] <= tonumber(ARGV[7]) then
  redis.call('PUBLISH', ARGV[6], ARGV[1] .. ' ' .. ARGV[2])
else
  redis.call('PUBLISH', ARGV[6], ARGV[1])
end
return {call[5], call[6], call[7] or ''}
