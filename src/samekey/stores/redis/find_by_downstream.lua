local record = load(KEYS[FIRST_RECORD])
if not record or record.downstream ~= p.downstream then
    return {}
end
return {row({clock}, record)}
