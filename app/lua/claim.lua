-- Claim one call on a sandbox: the same request id attaches, a new one is stored and put in flight on the owning node.
-- One script, so that no call slips in between a check and the sandbox's end, and a step costs one round trip.
-- Follows known.lua. KEYS: call, sandbox
-- ARGV: now, fingerprint, owner, is_admin, need_running, lost_before,
--       template of node hash, of node leases, of node in-flight, call id,
--       queue and message of a letter ('' for none), mark of the node in both,
--       session of a command ('' for other calls), of how many sessions the last command is known, then field/value pairs of the call
-- Returns {word, ...}: new|attached|done|conflict|missing|state|lost with what Python needs to answer.
local now = tonumber(ARGV[1])
local known = known_call(ARGV[2])
if known then return known end
local box = redis.call('HMGET', KEYS[2], 'owner', 'state', 'node', 'lease', 'start_call', 'stop_event', 'reason', 'inflight', 'last')
if not box[1] then return {'missing'} end
if box[1] ~= ARGV[3] and ARGV[4] ~= '1' then return {'missing'} end
if ARGV[5] == '1' and box[2] ~= 'running' then return {'state', box[2], box[6] or '', box[7] or ''} end
local node = box[3]
local function named(template) return (string.gsub(template, '%*', node)) end
local beat = tonumber(redis.call('HGET', named(ARGV[7]), 'heartbeat') or '0')
if beat < tonumber(ARGV[6]) then return {'lost', node, box[2]} end
local counted = ''
if box[2] == 'running' then
  -- The sandbox's incarnation is noted, so that a late completion cannot touch the counter of a later one.
  counted = box[5]
  local lease, changes = tonumber(box[4]), {'inflight', tonumber(box[8]) + 1}
  if lease > 0 then
    local expires = string.format('%.3f', now + lease)
    changes[3], changes[4] = 'expires', expires
    redis.call('ZADD', named(ARGV[8]), expires, string.match(KEYS[2], '[^:]*$'))
  end
  if ARGV[14] ~= '' then
    -- A line for each session, the latest first. Callers invent names, so only some are kept.
    local lines, left = ARGV[10] .. ' ' .. ARGV[14] .. '\n', tonumber(ARGV[15]) - 1
    for line, session in string.gmatch(box[9] or '', '(%x+ ([^\n]*)\n)') do
      if session ~= ARGV[14] and left > 0 then lines, left = lines .. line, left - 1 end
    end
    changes[#changes + 1], changes[#changes + 2] = 'last', lines
  end
  redis.call('HSET', KEYS[2], unpack(changes))
end
redis.call('HSET', KEYS[1], 'counted', counted, unpack(ARGV, 16))
redis.call('HSET', KEYS[1], 'node', node)
redis.call('ZADD', named(ARGV[9]), now, ARGV[10])
if ARGV[11] ~= '' then
  -- Ids hold no character that is special in a replacement.
  redis.call('LPUSH', (string.gsub(ARGV[11], ARGV[13], node)), (string.gsub(ARGV[12], ARGV[13], node)))
end
return {'new', node}
