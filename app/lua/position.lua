-- How many calls the session of a call has to run before it, found by looking at what is in flight on its node. Only when somebody asks.
-- KEYS: call. ARGV: call id, template of node in-flight, template of call
-- Returns the number, or -1 for a call that waits in no session: done, unknown, or of another kind.
local mine = redis.call('HMGET', KEYS[1], 'sandbox', 'session', 'node', 'state')
if not mine[2] or mine[4] == 'done' then return -1 end
local before = 0
for _, id in ipairs(redis.call('ZRANGE', (string.gsub(ARGV[2], '%*', mine[3])), 0, -1)) do
  if id == ARGV[1] then return before end
  local other = redis.call('HMGET', (string.gsub(ARGV[3], '%*', id)), 'sandbox', 'session')
  if other[1] == mine[1] and other[2] == mine[2] then before = before + 1 end
end
return -1
