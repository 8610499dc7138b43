-- Set fields of a hash that exists, so that a late write cannot bring a forgotten record back to life.
-- KEYS: hash. ARGV: a field, the value it must have ('' = any), then field/value pairs. Returns 1 if written.
local guard = redis.call('HGET', KEYS[1], ARGV[1])
if not guard or (ARGV[2] ~= '' and guard ~= ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
return 1
