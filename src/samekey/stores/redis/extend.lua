-- durable
-- An operator keeps an answer for longer. What has ended meanwhile, or ends later already, stays as it is.
local record = operation({[{state:completed}] = true})
if not record or number(record.expires_at) <= clock or number(record.expires_at) >= p.kept_until then
    return {}
end
change(KEYS[FIRST_RECORD], record, {expires_at = p.kept_until})
return {row({clock}, record)}
