-- Claim one call that is for a node itself and for no sandbox on it: the same request id attaches, a new one is in flight there.
-- KEYS: call, node in-flight
-- ARGV: now, fingerprint, call id, then field/value pairs of the call
-- Returns {word, ...}: new|attached|done|conflict
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'state', 'envelope', 'node')
if known[1] then
  if known[1] ~= ARGV[2] then return {'conflict'} end
  if known[2] == 'done' then return {'done', known[3]} end
  return {'attached', known[4]}
end
redis.call('HSET', KEYS[1], 'counted', '', unpack(ARGV, 4))
redis.call('ZADD', KEYS[2], ARGV[1], ARGV[3])
return {'new'}
