-- Claim one call that is for a node itself and for no sandbox on it: the same request id attaches, a new one is in flight there.
-- Follows known.lua. KEYS: call, node in-flight
-- ARGV: now, fingerprint, call id, then field/value pairs of the call
-- Returns {word, ...}: new|attached|done|conflict
local known = known_call(ARGV[2])
if known then return known end
redis.call('HSET', KEYS[1], 'counted', '', unpack(ARGV, 4))
redis.call('ZADD', KEYS[2], ARGV[1], ARGV[3])
return {'new'}
