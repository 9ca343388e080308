-- durable
-- The holder frees the key.
local record = held(p.attempt, {from:release})
if not record then
    return {}
end
remove(KEYS[FIRST_RECORD], record)
return {{clock, number(record.expires_at)}}
