-- durable
-- event: release
-- The holder frees the key. Not against a provider's yes that waits (see hold).
local record = held(p.attempt, {from:release})
if not record or record.disputed then
    return {}
end
remove(KEYS[FIRST_RECORD], record)
return {{clock, number(record.expires_at)}}
