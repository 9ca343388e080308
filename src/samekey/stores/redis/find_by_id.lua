-- The id says where its record lies; that it is the record's own is looked at, too.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.id then
    return {}
end
return {row({clock}, record)}
