-- Phased work: its input, its recovery points, and the fence around each step.

-- name: store_input
-- The input of phased work, by whoever holds the lease. Kept once: every retry goes on with the first.
insert into {inputs} (operation_id, name, version, payload, created_at, mark)
select k.id, :name, :version, :payload, {now}, :mark from {keys} as k
where k.scope = :scope and k.`key` = :key and k.attempt = :attempt and k.state in ({from:lease_end})
on duplicate key update version = {inputs}.version
-- then
select i.version from {inputs} as i join {keys} as k on k.id = i.operation_id
where k.scope = :scope and k.`key` = :key and k.attempt = :attempt and i.mark = :mark

-- name: load_input
select name, version, payload from {inputs} where operation_id = :operation_id

-- name: load_phases
select position, name, kind, done, result, provider_id, intent_at, {now} from {phases}
where operation_id = :operation_id order by position

-- name: open_phase
-- First in a database phase: whether the lease is still ours. The savepoint proves at the end that it is still
-- the same transaction.
savepoint samekey_proof
-- then
select 1 from {keys}
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:lease_end})

-- name: write_phase
-- A finished database phase, in the transaction of its own writes. No row: it is recorded already.
insert into {phases} (operation_id, position, name, kind, done, result, intent_at, done_at, mark)
values (:operation_id, :position, :name, 'transaction', 1, :result, {now}, {now}, :mark)
on duplicate key update position = :position
-- then
select position from {phases} where operation_id = :operation_id and position = :position and mark = :mark

-- name: fence
-- Last before COMMIT: whoever no longer holds the lease changes nothing.
update {keys} set recovery_point = :name, mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:lease_end})
-- then
select 1, disputed from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: write_intent
-- An effect that is about to be tried. On a resume the intent is there already.
insert into {phases} (operation_id, position, name, kind, done, intent_at)
values (:operation_id, :position, :name, 'effect', 0, {now})
on duplicate key update position = :position

-- name: renew_intent
-- An effect that provably never happened begins anew: its window and its settling time count from now.
update {phases} set intent_at = {now}
where operation_id = :operation_id and position = :position and done = 0

-- name: drop_intent
-- An effect that provably never happened, and whose operation stops here.
delete from {phases}
where operation_id = :operation_id and position = :position and done = 0

-- name: write_effect
-- The result of an effect.
update {phases} set done = 1, result = :result, provider_id = :provider_id, done_at = {now}, mark = :mark
where operation_id = :operation_id and position = :position
-- then
select position from {phases} where operation_id = :operation_id and position = :position and mark = :mark

-- name: regain  event: regain
-- The holder is alive and knows more: it holds the lease again, unless somebody else has taken it.
update {keys} set
    state = {to:regain}, locked_until = {now} + :lease_ms, error_code = null,
    reconcile_after = null, recovery_point = :name,
    provider_id = coalesce(:provider_id, provider_id), mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:regain})
-- then
select {now}, disputed from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: let_go
-- The holder stops here; the operation may be resumed after a pause, by a retry or by the completer. What
-- was refused before it could begin is not counted as an attempt. The attempt is no longer anybody's, so
-- that a heartbeat on its way does not take it up again.
update {keys} set
    attempt = {nobodys},
    locked_until = {now} + :pause_ms, error_code = :error_code, attempts = attempts - :uncounted, mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:lease_end})
-- then
select {now} from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: give_up  event: give_up
-- Trying has been exhausted: an operator decides.
update {keys} set state = {to:give_up}, locked_until = null, error_code = :error_code, mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:give_up})
-- then
select {now} from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: drop_input
delete from {inputs} where operation_id = :operation_id

-- name: drop_phases
delete from {phases} where operation_id = :operation_id

-- name: take_abandoned  event: resume
-- Phased operations whose lease ran out, each under a new attempt. Held and finished ones are left alone,
-- and so are those whose definition this process does not know.
select a.id from {keys} as a force index (samekey_keys_lease)
where a.state = 'in_progress' and a.mode = 'phased' and a.locked_until <= {now}
    and a.tenant not in (:full) and exists (
        select /*+ no_semijoin() */ 1 from {inputs} as i
        where i.operation_id = a.id
            and concat(i.name, '/', i.version) in (:known)
    )
order by a.locked_until limit :batch
for update skip locked
-- then
update {keys} set
    state = {to:resume}, attempt = concat(:token, id), attempts = attempts + 1,
    locked_until = {now} + :lease_ms, last_run_at = {now}
where id in (:locked)
-- then
select {now}, {record} from {keys} where id in (:locked)

-- name: clock
select {now}
