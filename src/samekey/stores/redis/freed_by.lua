-- The events that have freed attempts of this operation.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id then
    return {}
end
return {{'t' .. (record.freed_by or '[]')}}
