-- The event by which a provider says that it happened, if that waits.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id or not record.disputed then
    return {}
end
return {{'t' .. record.disputed}}
