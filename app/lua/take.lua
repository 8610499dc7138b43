-- Take a call for its node: read it and note that it runs, in one round trip. KEYS: call. ARGV: now
-- Returns the hash as a flat list, or {} when the call must not run: unknown, done, or not taken before its deadline
-- (whoever waits, or the sweep, answers that one).
local call = redis.call('HMGET', KEYS[1], 'state', 'deadline')
local state, deadline = call[1], tonumber(call[2])
if not state or state == 'done' then return {} end
if state == 'pending' then
  if deadline and tonumber(ARGV[1]) > deadline then return {} end
  redis.call('HSET', KEYS[1], 'state', 'running', 'started', ARGV[1])
end
return redis.call('HGETALL', KEYS[1])
