-- How many calls the session of a call has to run before it, found by looking at what is in flight on its node. Only when somebody asks.
-- KEYS: call. ARGV: call id, template of node in-flight, template of call
-- Returns the number, or -1 for a call that waits in no session: done, unknown, or of another kind.
local mine = redis.call('HMGET', KEYS[1], 'sandbox', 'session', 'node', 'state')
if not mine[2] or mine[4] == 'done' then return -1 end
local inflight = string.gsub(ARGV[2], '%*', mine[3])
local rank = redis.call('ZRANK', inflight, ARGV[1])
if not rank then return -1 end
-- In the order of the set, all fields in one go: a look at each call by itself takes longer.
local others = redis.call('SORT', inflight, 'BY', 'nosort', 'LIMIT', 0, rank,
  'GET', ARGV[3] .. '->sandbox', 'GET', ARGV[3] .. '->session')
local before = 0
for i = 1, #others, 2 do
  if others[i] == mine[1] and others[i + 1] == mine[2] then before = before + 1 end
end
return before
