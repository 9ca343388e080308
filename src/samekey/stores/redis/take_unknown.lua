-- Unknown outcomes whose time has come. Moving their date on keeps other reconcilers away meanwhile.
local rows = {}
for i = FIRST_RECORD, #KEYS do
    local record = load(KEYS[i])
    if not record then
        redis.call('ZREM', indexes.unknown, base_of(KEYS[i]))
    elseif record.state == {state:unknown} and number(record.reconcile_after) <= clock then
        local tries = number(record.reconcile_tries) + 1
        change(KEYS[i], record, {reconcile_after = clock + p.lease_ms, reconcile_tries = tries})
        rows[#rows + 1] = row({tries}, record)
    end
end
return rows
