-- Begin a stopped sandbox's next life on the node that has its files: record, reservation and call together, or nothing.
-- It waits in no line: elsewhere it cannot go. Follows known.lua, room.lua and line.lua. KEYS: call, sandbox
-- ARGV: see line.lua; from 8 on: fingerprint, call id, sandbox id, node, millicpus, memory, start call of the life that ended,
--       number of record fields n, n field/value pairs of the record, then the pairs of the call
-- Returns {word, ...}: new|attached|done|conflict|exists|full
local known = known_call(ARGV[8])
if known then return known end
local box = redis.call('HMGET', KEYS[2], 'state', 'start_call')
if box[1] ~= 'stopped' or box[2] ~= ARGV[14] then return {'exists', box[1] or 'deleted'} end
local id, node = ARGV[10], ARGV[11]
local want = {cpus = tonumber(ARGV[12]), memory = tonumber(ARGV[13]), lost_before = lost_before}
local open, pool = is_open(node, want)
local found = {}
if open then note_room(found, {node}, pool, want) end
if not found[1] then return {'full'} end
redis.call('DEL', KEYS[2])
redis.call('ZREM', key('node_stopped', node), id)
local n = tonumber(ARGV[15])
redis.call('HSET', KEYS[2], unpack(ARGV, 16, 15 + 2 * n))
take_room(node, id, want.cpus, want.memory)
redis.call('HSET', KEYS[1], unpack(ARGV, 16 + 2 * n))
redis.call('ZADD', key('node_inflight', node), now, ARGV[9])
if ARGV[4] ~= '' then redis.call('LPUSH', filled(ARGV[4], node, ARGV[9]), filled(ARGV[5], node, ARGV[9])) end
return {'new', node}
