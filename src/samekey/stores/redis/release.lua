-- durable
-- event: release
-- The holder frees the key. Not against a provider's yes that waits (see hold), nor one that has had a former life:
-- what that has made must stay known (see fail).
local record = held(p.attempt, {from:release})
if not record or record.disputed or number(record.life) > 1 then
    return {}
end
remove(KEYS[FIRST_RECORD], record)
return {{clock, number(record.expires_at)}}
