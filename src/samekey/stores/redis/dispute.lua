-- durable
-- event: dispute
-- A provider says that it happened, and that could not settle the record: it is not free any more, nor will be.
-- So is the tombstone of what never had an answer.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id or record.attempt ~= p.attempt then
    return {}
end
local failed = record.state == {state:expired} and not record.completed_at and record.after_expiry ~= 'gone'
if {table:settled}[record.state] and not failed then
    return {}
end
local columns = {disputed = with_dispute(record, p.event)}
if failed or record.state == {state:failed_retryable} then
    columns.state, columns.reconcile_after = {to:dispute}, clock
end
change(KEYS[FIRST_RECORD], record, columns)
return {{clock}}
