-- The statements of the PostgreSQL store. Each is one round trip.
--
-- :name      a parameter
-- {now}      the store's clock in milliseconds, or :now where a test gives one
-- {record}   the columns of a record, in the order of core/record.py
-- {from:e}   the states that event e may leave, {to:e} the state that it enters (core/states.py)
-- {expiry}   when the record ends if it is settled now: {expiry:k} of the table k
-- {kept}     something of its operation is left: a job to run or to be seen, a phase, a provider's word
-- {past}     what was made for a former life is known as that life's; for whatever takes one away for the next
-- {over}     its retention is over, nothing of its operation is left, and something may follow
-- {noted}    the attempt id of a record that its holder has noted something of
-- {same}     whether this is still the transaction that took the lock of atomic work
-- {durable}  true; makes sure that this commit is not one of synchronous_commit = off
-- {in_time}  it has not waited so long for a lock that whoever sent it must have gone; for whatever takes a key

-- name: reserve  event: claim
-- Insert or nothing. Gives the new record ("mine"), or the one that is there, or neither: then somebody
-- else's insert committed while this statement ran, and the caller asks again.
with found as (
    select {record} from {keys} where scope = :scope::text and key = :key::text
), mine as (
    insert into {keys} as k (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
        attempts, locked_until, downstream, life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, expires_at
    )
    select
        :scope::text, :key::text, :id::text, :tenant::text, :endpoint::text, :fingerprint::bytea,
        :fingerprint_version::text, {to:claim}, :mode::text, :attempt::text, 1,
        {now} + :lease_ms::bigint, :downstream::text, 1, :ttl_ms::bigint, :ttl_from::text, :after_expiry::text,
        {now}, {now}, {now} + :ttl_ms::bigint
    where not exists (select from found) and {durable} and {in_time}
    on conflict (scope, key) do nothing
    returning {record}
)
select {now}, 1::bigint, mine.* from mine
union all
select {now}, 0::bigint, found.* from found

-- name: find
-- The record of a key, if any; always one row, so that the store's clock comes along.
select {now}, {record} from (select) as one
left join {keys} on scope = :scope::text and key = :key::text

-- name: kept_waiting
-- Whether a commit of this role's has been waiting for its synchronous standby. It is done and cannot be seen yet.
select {now} from pg_stat_activity
where wait_event = 'SyncRep' and usename = current_user and datname = current_database()
    and query_start < statement_timestamp() - interval '1 second'
limit 1

-- name: find_by_id
select {now}, {record} from {keys} where id = :id::text

-- name: find_former
-- Whether an operation of this tenant's had that id: the audit outlives the record.
select {now} from {audit} where operation_id = :id::text and tenant = :tenant::text limit 1

-- name: find_by_downstream
select {now}, {record} from {keys} where downstream = :downstream::text limit 2

-- name: retry  event: retry
-- One retry wins the right to run a failed operation again: the attempt it saw must still be there. (No index of the
-- states can be used for it: a plan that was made while the table was empty would look through all that have failed.)
update {keys} set
    state = {to:retry}, mode = :mode::text, attempt = :attempt::text, attempts = attempts + 1,
    locked_until = {now} + :lease_ms::bigint, last_run_at = {now},
    expires_at = {now} + ttl_ms, error_code = null, provider_id = null, reconcile_tries = 0,
    downstream = coalesce(downstream, :downstream::text)
where scope = :scope::text and key = :key::text and attempt = :seen::text
    and (state || '') in ({from:retry}) and {durable} and {in_time}
returning {now}, {record}

-- name: resume  event: resume
-- Takes over phased work whose lease ran out, under a new attempt.
update {keys} set
    state = {to:resume}, attempt = :attempt::text, attempts = attempts + 1,
    locked_until = {now} + :lease_ms::bigint, last_run_at = {now}
where scope = :scope::text and key = :key::text and attempt = :seen::text
    and state in ({from:resume}) and mode = 'phased' and locked_until <= {now} and {durable} and {in_time}
returning {now}, {record}

-- name: reuse  event: claim
-- A new life of a key whose retention is over, whether or not the reaper has been by. It is a new operation: the
-- former one goes, and what refers to it (on delete set null) goes with it or forgets it. What the provider has made for
-- it is known as a former life's: it must not be taken for this one's.
with former as (
    delete from {keys}
    where scope = :scope::text and key = :key::text and attempt = :seen::text and {over} and {durable} and {in_time}
    returning id, life
), {past}, mine as (
    insert into {keys} (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
        attempts, locked_until, downstream, life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, expires_at
    )
    select
        :scope::text, :key::text, :id::text, :tenant::text, :endpoint::text, :fingerprint::bytea,
        :fingerprint_version::text, {to:claim}, :mode::text, :attempt::text, 1,
        {now} + :lease_ms::bigint, :downstream::text, former.life + 1, :ttl_ms::bigint, :ttl_from::text,
        :after_expiry::text, {now}, {now}, {now} + :ttl_ms::bigint
    from former
    returning {record}
)
select {now}, mine.* from mine

-- name: end_lease  event: lease_end
-- Moves a record whose lease ran out, by its mode.
update {keys} set
    state = {lease_end}, locked_until = null, error_code = 'lease_ended',
    reconcile_after = case when {lease_end} = 'unknown' then {now} end, expires_at = {now} + ttl_ms
where scope = :scope::text and key = :key::text and attempt = :seen::text
    and state in ({from:lease_end}) and mode <> 'phased' and locked_until <= {now} and {durable}
returning {now}, {record}

-- name: renew
-- Many leases of a process at once; gives back the attempts that it renewed. A record that somebody has locked
-- is left out and has its turn later: it must not keep the others from being renewed.
with mine as materialized (
    select k.scope, k.key, l.attempt, l.duration
    from unnest(:scopes::text[], :key_list::text[], :attempts::text[], :durations::bigint[])
        as l (scope, key, attempt, duration)
    cross join lateral (
        select o.scope, o.key from {keys} as o
        where o.scope = l.scope and o.key = l.key and o.attempt = l.attempt and o.state in ({from:lease_end})
        limit 1 for update skip locked
    ) as k
)
update {keys} as k set locked_until = {now} + mine.duration from mine
where k.scope = mine.scope and k.key = mine.key and k.attempt = mine.attempt
    and k.state in ({from:lease_end})
returning k.attempt

-- name: complete  event: complete
-- The holder's answer. Nothing happens if anybody else has taken the record, or if it says no and a provider's yes
-- waits (see hold), unless the handler knew of each that waits (:heeded).
update {keys} set
    state = {to:complete}, answer_version = :answer_version::bigint,
    answer_status = :answer_status::bigint, answer_headers = :answer_headers::bytea,
    answer_body = :answer_body::bytea, completed_at = {now}, locked_until = null,
    expires_at = {expiry}, error_code = null, reconcile_after = null,
    provider_id = coalesce(:provider_id::text, provider_id)
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:complete}) and (disputed = 0 or :happened::bigint = 1 or :heeded::text is not null) and {durable}
returning {now}, expires_at

-- name: fail  event: fail
-- The holder proves that nothing happened.
update {keys} set
    state = {to:fail}, locked_until = null, error_code = :error_code::text, reconcile_after = null,
    expires_at = {now} + ttl_ms
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:fail}) and disputed = 0 and {durable}
returning {now}, expires_at

-- name: lose  event: lose
-- The holder cannot tell what happened. What it notes of an outcome that others may be asking about by now is news
-- to them: {noted}.
update {keys} set
    attempt = {noted}, state = {to:lose}, locked_until = null, error_code = :error_code::text, reconcile_after = {now},
    provider_id = coalesce(:provider_id::text, provider_id)
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:lose}) and {durable}
returning {now}, expires_at

-- name: release  event: release
-- The holder frees the key. Not one that has had a former life: what that has made must stay known (see fail).
delete from {keys}
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:release}) and disputed = 0 and life = 1 and {durable}
returning {now}, expires_at

-- name: hold  event: dispute
-- The holder would free the key, but a provider says that it happened, and that word waits: nobody runs it before
-- somebody has found out.
update {keys} set
    attempt = {noted}, state = {to:dispute}, locked_until = null, error_code = :error_code::text, reconcile_after = {now}
where scope = :scope::text and key = :key::text and attempt = :attempt::text
    and state in ({from:dispute}) and disputed = 1 and {durable}
returning {now}, expires_at

-- name: expire  event: expire
-- Retention is over: keep the fact, drop the answer.
update {keys} set
    state = {to:expire}, answer_version = null, answer_status = null, answer_headers = null,
    answer_body = null
where scope = :scope::text and key = :key::text and state in ({from:expire}) and expires_at <= {now}
    and not {kept}
returning {now}, expires_at

-- name: atomic_enter
-- Begins atomic work for a key that seems to be new, in one text with BEGIN: takes the lock that spares duplicates
-- the wait, bounds how long a silent handler may hold the transaction, and notes whose transaction this is. Then, by a
-- statement of its own, whose snapshot is younger than the lock, looks whether the key is free. If it is, there is one
-- row; it has no columns, because a text's answer tells no more than how many rows there are.
select
    set_config('samekey.attempt', :attempt::text, true),
    set_config('idle_in_transaction_session_timeout', :max_run_ms::text, true)
where pg_try_advisory_xact_lock(:lock::bigint) and {durable}
-- then
select where current_setting('samekey.attempt', true) = :attempt::text
    and not exists (select from {keys} where scope = :scope::text and key = :key::text)

-- name: atomic_lock
-- The same for any key, and on a connection of the user's, of which more has to be known. The look is another round
-- trip.
select
    pg_try_advisory_xact_lock(:lock::bigint)::int::bigint,
    {now},
    current_setting('transaction_isolation'),
    (pg_current_xact_id_if_assigned() is not null)::int::bigint,
    (:probe_text::text = 'probe' and :probe_bytes::bytea = decode('00ff', 'hex'))::int::bigint,
    :probe_text::text,
    :probe_bytes::bytea,
    set_config('samekey.attempt', :attempt::text, true),
    set_config('idle_in_transaction_session_timeout', :max_run_ms::text, true)
where {durable}

-- name: make_room  event: reap
-- A former life of the key, whose retention is over, goes in the transaction that brings the new one. Apart from
-- atomic_commit and accept: merely to be able to ask what is left of it opens three tables more, for every new key.
with former as (
    delete from {keys}
    where scope = :scope::text and key = :key::text and attempt = :seen::text and {over} and {same}
    returning id, life
), {past}
select {now}, life from former

-- name: atomic_commit  event: commit
-- Ends atomic work: the record appears, completed, with the handler's writes. It proves that this is
-- still the transaction that took the lock, and tells whether the handler wrote anything in it. The index
-- is the truth: if somebody else's record is there, nothing is written and the caller rolls back. A former life of
-- the key (:reused) has made room by a statement of its own; a failed attempt of this one (:seen) becomes this one.
with proof as materialized (
    select
        {same} as same,
        pg_current_xact_id_if_assigned() is not null as wrote
), written as (
    insert into {keys} as k (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
        attempts, answer_version, answer_status, answer_headers, answer_body, provider_id,
        life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, completed_at, expires_at
    )
    select
        :scope::text, :key::text, :id::text, :tenant::text, :endpoint::text, :fingerprint::bytea,
        :fingerprint_version::text, {to:commit}, :mode::text, :attempt::text, 1,
        :answer_version::bigint, :answer_status::bigint, :answer_headers::bytea, :answer_body::bytea,
        :provider_id::text, :life::bigint, :ttl_ms::bigint, :ttl_from::text, :after_expiry::text,
        {now}, {now}, {now}, {now} + :ttl_ms::bigint
    from proof where proof.same
    on conflict (scope, key) do update set
        state = {to:commit}, mode = excluded.mode, attempt = excluded.attempt,
        attempts = k.attempts + 1, endpoint = excluded.endpoint, fingerprint = excluded.fingerprint,
        fingerprint_version = excluded.fingerprint_version,
        answer_version = excluded.answer_version, answer_status = excluded.answer_status,
        answer_headers = excluded.answer_headers, answer_body = excluded.answer_body,
        provider_id = excluded.provider_id, locked_until = null, error_code = null,
        reconcile_after = null, recovery_point = null,
        last_run_at = excluded.last_run_at, completed_at = excluded.completed_at,
        expires_at = {expiry:k}
        where :reused::bigint = 0 and k.attempt = :seen::text and k.state = 'failed_retryable'
    returning k.expires_at
)
select
    proof.same::int::bigint, proof.wrote::int::bigint, written.expires_at,
    pg_current_xact_id_if_assigned()::text
from proof left join written on true

-- name: atomic_proof
-- Whether this is still the transaction that took the lock.
select ({same})::int::bigint

-- name: atomic_outcome  event: commit, lose
-- After a rollback: what is to be remembered of it all the same, a refusal or an unknown outcome. It is
-- written under the same lock, and only if nobody else has written meanwhile.
with allowed as materialized (
    select pg_try_advisory_xact_lock(:lock::bigint) or :state::text = 'unknown' as mine
), former as (
    delete from {keys}
    where :reused::bigint = 1 and scope = :scope::text and key = :key::text and attempt = :seen::text and {over}
        and (select mine from allowed)
    returning id, life
), {past}
insert into {keys} as k (
    scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt, attempts,
    answer_version, answer_status, answer_headers, answer_body, error_code, reconcile_after,
    life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, completed_at, expires_at
)
select
    :scope::text, :key::text, :id::text, :tenant::text, :endpoint::text, :fingerprint::bytea,
    :fingerprint_version::text, :state::text, :mode::text, :attempt::text, 1,
    :answer_version::bigint, :answer_status::bigint, :answer_headers::bytea, :answer_body::bytea,
    :error_code::text, case when :state::text = 'unknown' then {now} end,
    :life::bigint, :ttl_ms::bigint, :ttl_from::text, :after_expiry::text,
    {now}, {now}, case when :state::text = 'completed' then {now} end, {now} + :ttl_ms::bigint
from allowed left join former on true where allowed.mine and {durable}
on conflict (scope, key) do update set
    state = excluded.state, mode = excluded.mode, attempt = excluded.attempt,
    attempts = k.attempts + 1, fingerprint = excluded.fingerprint,
    fingerprint_version = excluded.fingerprint_version, endpoint = excluded.endpoint,
    answer_version = excluded.answer_version, answer_status = excluded.answer_status,
    answer_headers = excluded.answer_headers, answer_body = excluded.answer_body,
    error_code = excluded.error_code, reconcile_after = excluded.reconcile_after,
    last_run_at = excluded.last_run_at, completed_at = excluded.completed_at,
    expires_at = {expiry:k}, locked_until = null, recovery_point = null
    where :reused::bigint = 0 and k.attempt = :seen::text
        and k.state in ({from:commit}) and k.state in ({from:lose}) and k.state <> 'expired'
returning {now}, expires_at

-- name: transaction_status
-- What became of a transaction whose acknowledgement was lost.
select coalesce(pg_xact_status(:transaction::text::xid8), 'unknown')

-- name: schema_versions
select version::bigint, min_compatible::bigint from {schema}.schema_versions order by version

-- name: migration_patience
-- How long a statement of a migration queues for a lock. Whoever wants the table meanwhile queues behind it, so it
-- gives up soon, by the server's own clock, and is tried again later.
select set_config('lock_timeout', :patience_ms::text, true)

-- name: migration_waits_for
-- Whose transactions hold locks on the tables, or on the migration itself.
select distinct on (a.pid) a.pid::bigint, coalesce(nullif(a.application_name, ''), a.usename::text, '?'),
    coalesce(a.state, '?'), extract(epoch from statement_timestamp() - a.xact_start)::bigint
from pg_locks as l
join pg_stat_activity as a on a.pid = l.pid
left join pg_class as c on c.oid = l.relation
left join pg_namespace as n on n.oid = c.relnamespace
where l.granted and a.xact_start is not null and a.pid <> pg_backend_pid() and a.datname = current_database()
    and (n.nspname = :schema_name::text or l.locktype = 'advisory')
order by a.pid

-- name: migration_lock
-- Migrators queue up here; the second finds the work done.
select pg_advisory_xact_lock(7165093141852290897)::text

-- name: create_versions
create table if not exists {schema}.schema_versions (
    version        bigint primary key,
    min_compatible bigint not null,
    applied_at     timestamptz not null default now()
)

-- name: create_schema
create schema if not exists {schema}

-- name: schema_there
select count(*)::bigint from pg_namespace where nspname = :schema_name::text

-- name: schema_exists
-- In the catalogue, which also shows what this role has no right to: that is another error.
select count(*)::bigint from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where n.nspname = :schema_name::text and c.relname = 'schema_versions'

-- name: note_version
insert into {schema}.schema_versions (version, min_compatible)
values (:version::bigint, :min_compatible::bigint)

-- name: missing_rights
-- What this role may not do with the tables; null if nothing is missing. All of them are needed by every mode: what
-- belongs to an operation goes with it. The audit is only written and read.
select string_agg(missing.privilege || ' on ' || missing.name, ', ' order by missing.name, missing.privilege)
from (
    select wanted.name, wanted.privilege from (
        select name, privilege
        from unnest(array['keys', 'inputs', 'phases', 'jobs', 'effects', 'made', 'evidence', 'limits']) as name,
            unnest(array['select', 'insert', 'update', 'delete']) as privilege
        union all values ('audit', 'select'), ('audit', 'insert')
    ) as wanted
    where not has_table_privilege(format('%I.%I', :schema_name::text, wanted.name), wanted.privilege)
    union all
    select 'function ' || p.proname, 'execute'
    from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = :schema_name::text and p.proname = 'keep_place' and not has_function_privilege(p.oid, 'execute')
) as missing
