-- Make a sandbox: record, reservation and start call together, or nothing.
-- KEYS: call, sandbox, node hash, node sandboxes, node in-flight, all sandboxes, node stopped
-- ARGV: now, fingerprint, owner, call id, sandbox id, millicpus, memory, lost_before,
--       start call of the ended life that goes on ('' for a new sandbox), number of record fields n,
--       n field/value pairs of the record, then the pairs of the call
-- Returns {word, ...}: new|attached|done|conflict|exists|full
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'state', 'envelope')
if known[1] then
  if known[1] ~= ARGV[2] then return {'conflict'} end
  if known[2] == 'done' then return {'done', known[3]} end
  return {'attached'}
end
local box = redis.call('HMGET', KEYS[2], 'state', 'owner', 'start_call')
if ARGV[9] ~= '' then
  if box[1] ~= 'stopped' or box[3] ~= ARGV[9] then return {'exists', box[1] or 'deleted'} end
elseif box[1] and (box[1] ~= 'stopped' and box[1] ~= 'deleted' or box[2] ~= ARGV[3]) then return {'exists', box[1]} end
local node = redis.call('HMGET', KEYS[3], 'state', 'heartbeat', 'cpus', 'memory', 'used_cpus', 'used_memory')
if node[1] ~= 'active' or tonumber(node[2] or '0') < tonumber(ARGV[8]) then return {'full'} end
local cpus, memory = tonumber(ARGV[6]), tonumber(ARGV[7])
if tonumber(node[5]) + cpus > tonumber(node[3]) or tonumber(node[6]) + memory > tonumber(node[4]) then return {'full'} end
-- An ended sandbox's record under this id makes way; its own reservation was given back when it ended.
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[7], ARGV[5])
local n = tonumber(ARGV[10])
redis.call('HSET', KEYS[2], unpack(ARGV, 11, 10 + 2 * n))
redis.call('HINCRBY', KEYS[3], 'used_cpus', cpus)
redis.call('HINCRBY', KEYS[3], 'used_memory', memory)
redis.call('SADD', KEYS[4], ARGV[5])
redis.call('HSET', KEYS[1], unpack(ARGV, 11 + 2 * n))
redis.call('ZADD', KEYS[5], ARGV[1], ARGV[4])
if ARGV[9] == '' then redis.call('ZADD', KEYS[6], ARGV[1], ARGV[5]) end
return {'new'}
