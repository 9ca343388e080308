-- Records by name, those that are there.
local rows = {}
for i = FIRST_RECORD, #KEYS do
    local record = load(KEYS[i])
    if record then
        rows[#rows + 1] = row({clock}, record)
    end
end
return rows
