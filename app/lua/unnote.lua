-- Drop a field of a hash, unless it has been written anew since it was read. KEYS: hash. ARGV: the field, the value it had
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
