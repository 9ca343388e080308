-- In one partition; all of them are asked. A pointer may be older than what it points to, so that is looked at.
local base = redis.call('GET', pointer(p.provider_id))
local record = base and load(home .. base)
if not record or record.provider_id ~= p.provider_id then
    return {}
end
return {row({clock}, record)}
