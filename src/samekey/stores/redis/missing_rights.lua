-- The commands that the scripts use and that this user may not: each is tried on a key of its own. A script that is
-- refused half-way is not undone, so nothing is claimed before all of them are known to be allowed.
local place, missing = home .. 'rights', {}
local tried = {
    {'TIME'}, {'HSET', place, 'a', '1'}, {'HGET', place, 'a'}, {'HGETALL', place}, {'HMGET', place, 'a'},
    {'HDEL', place, 'b'}, {'EXISTS', place}, {'PEXPIRE', place, '60000'}, {'PERSIST', place}, {'SADD', place, 'a'},
    {'SCARD', place}, {'SMEMBERS', place}, {'SREM', place, 'a'}, {'ZADD', place, '1', 'a'}, {'ZCARD', place},
    {'ZCOUNT', place, '0', '1'}, {'ZRANGE', place, '0', '1'}, {'ZREM', place, 'a'}, {'MGET', place},
    {'SET', place, 'a', 'PX', '60000'}, {'GET', place}, {'DEL', place},
}
for _, command in ipairs(tried) do
    local reply = redis.pcall(unpack(command))
    local refused = type(reply) == 'table' and reply.err or ''
    if string.find(refused, 'NOPERM') or string.find(refused, 'permission') or string.find(refused, "can't run") then
        missing[#missing + 1] = {clock, 't' .. string.lower(command[1])}
    end
end
return missing
