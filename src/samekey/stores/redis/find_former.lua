-- Whether the id is that of a former life of a key of this tenant's.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id == p.id or record.tenant ~= p.tenant then
    return {}
end
return {{clock}}
