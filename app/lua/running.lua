-- Note that a node took a call. KEYS: call. ARGV: now. Returns the state the call was in, or '' when unknown.
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return '' end
if state == 'pending' then redis.call('HSET', KEYS[1], 'state', 'running', 'started', ARGV[1]) end
return state
