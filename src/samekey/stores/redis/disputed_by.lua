-- The events by which providers say that it happened, and that wait.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id or not record.disputed then
    return {}
end
return {{'t' .. record.disputed}}
