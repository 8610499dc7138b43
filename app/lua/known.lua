-- A request id runs once: what its caller gets when the call is known already. Prelude of every script that claims. KEYS[1]: call
-- known_call(fingerprint) returns {conflict} for another use of the id, {done, envelope}, {attached, node}; nil for a new call.
local function known_call(fingerprint)
  local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'state', 'envelope', 'node')
  if not known[1] then return nil end
  if known[1] ~= fingerprint then return {'conflict'} end
  if known[2] == 'done' then return {'done', known[3]} end
  return {'attached', known[4]}
end
