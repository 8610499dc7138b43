-- Take a call for its node: read it and note that it runs, in one round trip. KEYS: call. ARGV: now
-- Returns the hash as a flat list, or {} when the call is unknown or done and must not run.
local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == 'done' then return {} end
if state == 'pending' then redis.call('HSET', KEYS[1], 'state', 'running', 'started', ARGV[1]) end
return redis.call('HGETALL', KEYS[1])
