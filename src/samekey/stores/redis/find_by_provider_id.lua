-- In one partition; all of them are asked. An entry may be older than what it points to, so that is looked at. Each
-- effect that has the id is a row, whichever attempt noted it.
local rows = {}
local noted = pointer(p.tenant, p.provider_id)
for _, base in ipairs(redis.call('SMEMBERS', noted)) do
    local record = load(home .. base)
    if record and record.tenant == p.tenant then
        local seen, made = {}, false
        for _, one in ipairs(made_by(record)) do
            made = made or one[1] == p.provider_id
            local key = type(one[4]) == 'string' and one[4] or ''
            if one[1] == p.provider_id and not seen[key] and (not p.source or one[5] == p.source) then
                seen[key] = true
                rows[#rows + 1] = row({key ~= '' and 't' .. key, clock}, record)
            end
        end
        if record.provider_id == p.provider_id and not made and (not p.source or record.source == p.source) then
            rows[#rows + 1] = row({false, clock}, record)
        end
    end
end
return rows
