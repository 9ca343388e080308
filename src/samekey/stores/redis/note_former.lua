-- durable
-- What an attempt has made that is not the current one any more, as its holder tells late.
local record = mine()
if not record or record.id ~= p.operation_id then
    return {}
end
change(KEYS[FIRST_RECORD], record, {made = made_with(record, p.attempt)})
return {{clock}}
