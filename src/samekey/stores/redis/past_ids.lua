-- The provider's ids that former lives of the key have noted.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id then
    return {}
end
return {{'t' .. (record.past or '[]')}}
