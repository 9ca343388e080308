-- Phased work: its input, its recovery points, and the fence around each step.

-- name: store_input
-- The input of phased work, by whoever holds the lease. Kept once: every retry goes on with the first.
insert into {inputs} (operation_id, name, version, payload, created_at)
select id, :name::text, :version::bigint, :payload::bytea, {now} from {keys}
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:lease_end}) and {durable}
on conflict (operation_id) do nothing
returning version

-- name: load_input
select name, version, payload from {inputs} where operation_id = :operation_id::text

-- name: load_phases
select position, name, kind, done, result, provider_id, intent_at, {now} from {phases}
where operation_id = :operation_id::text order by position

-- name: write_phase
-- A finished database phase, in the transaction of its own writes. No row: it is recorded already, or this
-- is another transaction than the one that began.
insert into {phases} (operation_id, position, name, kind, done, result, intent_at, done_at)
select :operation_id::text, :position::bigint, :name::text, 'transaction', 1, :result::bytea, {now}, {now}
where coalesce(:began::bigint = (extract(epoch from now()) * 1000000)::bigint, true)
on conflict (operation_id, position) do nothing
returning position

-- name: open_phase
-- First in a database phase: whether the lease is still ours, and which transaction this is. Bounds how
-- long a silent process may hold its locks, for which a resumed attempt would wait.
select
    (extract(epoch from now()) * 1000000)::bigint,
    set_config('idle_in_transaction_session_timeout', :max_run_ms::text, true)
from {keys}
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:lease_end})

-- name: fence
-- Last before COMMIT: whoever no longer holds the lease changes nothing. Tells which transaction this is.
update {keys} set recovery_point = :name::text
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:lease_end}) and {durable}
returning (extract(epoch from now()) * 1000000)::bigint, disputed

-- name: write_intent
-- An effect that is about to be tried. On a resume the intent is there already.
insert into {phases} (operation_id, position, name, kind, done, intent_at)
values (:operation_id::text, :position::bigint, :name::text, 'effect', 0, {now})
on conflict (operation_id, position) do nothing

-- name: renew_intent
-- An effect that provably never happened begins anew: its window and its settling time count from now.
update {phases} set intent_at = {now}
where operation_id = :operation_id::text and position = :position::bigint and done = 0

-- name: drop_intent
-- An effect that provably never happened, and whose operation stops here.
delete from {phases}
where operation_id = :operation_id::text and position = :position::bigint and done = 0

-- name: write_effect
-- The result of an effect.
update {phases} set done = 1, result = :result::bytea, provider_id = :provider_id::text, done_at = {now}
where operation_id = :operation_id::text and position = :position::bigint
returning position

-- name: regain  event: regain
-- The holder is alive and knows more: it holds the lease again, unless somebody else has taken it.
update {keys} set
    state = {to:regain}, locked_until = {now} + :lease_ms::bigint, error_code = null,
    reconcile_after = null, recovery_point = :name::text,
    provider_id = coalesce(:provider_id::text, provider_id)
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:regain}) and {durable}
returning {now}, disputed

-- name: let_go
-- The holder stops here; the operation may be resumed after a pause, by a retry or by the completer. What
-- was refused before it could begin is not counted as an attempt. The attempt is no longer anybody's, so
-- that a heartbeat on its way does not take it up again.
update {keys} set
    attempt = {nobodys},
    locked_until = {now} + :pause_ms::bigint, error_code = :error_code::text,
    attempts = attempts - :uncounted::bigint
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:lease_end}) and {durable}
returning {now}

-- name: give_up  event: give_up
-- Trying has been exhausted: an operator decides.
update {keys} set state = {to:give_up}, locked_until = null, error_code = :error_code::text
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:give_up}) and {durable}
returning {now}

-- name: drop_input
delete from {inputs} where operation_id = :operation_id::text

-- name: drop_phases
delete from {phases} where operation_id = :operation_id::text

-- name: take_abandoned  event: resume
-- Phased operations whose lease ran out, each under a new attempt. Held and finished ones are left alone,
-- and so are those whose definition this process does not know.
with due as materialized (
    select a.scope as due_scope, a.key as due_key
    from {keys} as a join {inputs} as i on i.operation_id = a.id
    where a.state = 'in_progress' and a.mode = 'phased' and a.locked_until <= {now}
        and i.name || '/' || i.version = any(:known::text[])
        and a.tenant <> all(:full::text[])
    order by a.locked_until limit :batch::bigint for update of a skip locked
)
update {keys} set
    state = {to:resume}, attempt = :token::text || id, attempts = attempts + 1,
    locked_until = {now} + :lease_ms::bigint, last_run_at = {now}
from due
where scope = due_scope and key = due_key and state in ({from:resume}) and {durable}
    and {actor:completer}
returning {now}, {record}

-- name: clock
select {now}
