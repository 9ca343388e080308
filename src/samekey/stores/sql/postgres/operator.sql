-- Finding out and overriding: the reconciler's and the operator's statements. Each act is audited.
--
-- Where :attempt is given, what was found out is about that attempt only: the operation may have been run
-- again and be unknown again meanwhile.

-- name: act_as
-- Who acts in this transaction and why; the audit trigger reads it.
select set_config('samekey.actor', :actor::text, true), set_config('samekey.reason', :reason::text, true)

-- name: act_end
select set_config('samekey.actor', '', true), set_config('samekey.reason', '', true)

-- name: take_unknown
-- Unknown outcomes whose time has come. Moving their date on keeps other reconcilers away meanwhile.
-- (The array is filled once, before the update, and keeps the plan on the index whatever the statistics say.)
update {keys} set reconcile_after = {now} + :lease_ms::bigint, reconcile_tries = reconcile_tries + 1
where id = any(array(
    select id from {keys} where state = 'unknown' and reconcile_after <= {now}
        and endpoint <> all(:without::text[])
    order by reconcile_after limit :batch::bigint for update skip locked
)) and {durable}
returning reconcile_tries, {record}

-- name: ask_again
update {keys} set reconcile_after = {now} + :pause_ms::bigint
where id = :operation_id::text and state = 'unknown'
    and (:attempt::text is null or attempt = :attempt::text)
returning {now}

-- name: found_executed  event: found_executed
-- It happened (or was declined): this is its answer. The last error code stays: it tells a record that was
-- found out from one that its holder completed.
update {keys} set
    state = {to:found_executed}, attempt = {nobodys}, answer_version = :answer_version::bigint,
    answer_status = :answer_status::bigint, answer_headers = :answer_headers::bytea,
    answer_body = :answer_body::bytea, completed_at = {now}, locked_until = null,
    expires_at = {expiry}, reconcile_after = null,
    reconcile_tries = 0, provider_id = coalesce(:provider_id::text, provider_id)
where id = :operation_id::text and state in ({from:found_executed})
    and (:attempt::text is null or attempt = :attempt::text) and {durable}
returning {now}, {record}

-- name: recall  event: recall
-- The provider, asked before a key that had expired runs again, knows its answer: the operation is done, as it was.
-- The attempt that was asked about must still be there.
update {keys} set
    state = {to:recall}, attempt = :attempt::text, answer_version = :answer_version::bigint,
    answer_status = :answer_status::bigint, answer_headers = :answer_headers::bytea,
    answer_body = :answer_body::bytea, completed_at = {now}, locked_until = null, expires_at = {expiry},
    error_code = null, reconcile_after = null, provider_id = coalesce(:provider_id::text, provider_id)
where id = :operation_id::text and attempt = :seen::text and {over} and {durable}
returning {now}, {record}

-- name: found_not_executed  event: found_not_executed
-- It never happened: one retry may run. Not for deferred work with a dead job: its handler has committed, so
-- running that again would write twice; the job is tried again instead. Nor against a provider's yes that waits.
update {keys} set
    state = {to:found_not_executed}, attempt = {nobodys}, locked_until = null, reconcile_after = null,
    reconcile_tries = 0,
    expires_at = {now} + ttl_ms
where id = :operation_id::text and state in ({from:found_not_executed}) and disputed = 0
    and not (mode = 'deferred' and state = 'dead_letter')
    and (:attempt::text is null or attempt = :attempt::text) and {durable}
returning {now}, {record}

-- name: give_up_finding  event: give_up
update {keys} set state = {to:give_up}, attempt = {nobodys}, reconcile_after = null
where id = :operation_id::text and state = 'unknown'
    and (:attempt::text is null or attempt = :attempt::text) and {durable}
returning {now}

-- name: evict_answer
-- Drops a stored answer; the fact stays, so a retry is told that it was done and is not run.
update {keys} set answer_status = null, answer_headers = null, answer_body = null
where id = :operation_id::text and state = 'completed' and answer_status is not null and {durable}
returning {now}, {record}

-- name: extend
-- An operator keeps an answer for longer. What has ended meanwhile, or ends later already, stays as it is.
update {keys} set expires_at = :kept_until::bigint
where id = :operation_id::text and attempt = :attempt::text and state = 'completed'
    and expires_at > {now} and expires_at < :kept_until::bigint and {durable}
returning {now}, {record}

-- name: reopen  event: reopen
-- A failure that was remembered as the answer may be tried again, once. Not of phased or deferred work, which would
-- begin anew and do its finished parts twice; nor while a provider says that it happened.
update {keys} set
    state = {to:reopen}, attempt = {nobodys}, answer_version = null, answer_status = null, answer_headers = null,
    answer_body = null, completed_at = null, error_code = 'reopened', expires_at = {now} + ttl_ms
where id = :operation_id::text and attempt = :attempt::text and state in ({from:reopen}) and answer_status >= 400
    and mode in ('atomic', 'leased', 'repeatable') and expires_at > {now} and disputed = 0
    and not exists (
        select 1 from {evidence} as v where v.operation_id = :operation_id::text and v.says = 'executed'
            and v.state in ('waiting', 'ambiguous', 'conflict')
    ) and {durable}
returning {now}, {record}

-- name: note_act
-- An act that changes no state still leaves its trace.
insert into {audit} (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason)
select {now}, id, scope, key, tenant, state, state, attempt, :actor::text, :reason::text
from {keys} where id = :operation_id::text

-- name: note_job_act
-- The same of a job whose operation is gone: its key has had another life, or none. The job knows whose it was.
insert into {audit} (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason)
select {now}, operation_id, scope, key, tenant, 'dead', state, attempt, :actor::text, :reason::text
from {jobs} as j where j.id = :id::text and not exists (select 1 from {keys} as k where k.id = j.operation_id)

-- name: drop_intents
-- Effects that provably never happened: the retry makes the call again.
delete from {phases} where operation_id = :operation_id::text and done = 0

-- name: settle_jobs
-- The operation is settled, so nobody may have its dead job tried again.
update {jobs} set state = 'discarded', done_at = {now}
where operation_id = :operation_id::text and state = 'dead' and answers = 1

-- name: close_dead  event: found_executed
-- An operator gives a dead operation its final answer.
update {keys} set
    state = {to:found_executed}, attempt = {nobodys}, answer_version = :answer_version::bigint,
    answer_status = :answer_status::bigint, answer_headers = :answer_headers::bytea,
    answer_body = :answer_body::bytea, completed_at = {now}, locked_until = null,
    expires_at = {expiry}, reconcile_after = null, reconcile_tries = 0
where id = :operation_id::text and state = 'dead_letter' and {durable}
returning {now}, {record}

-- name: revive_pending  event: requeue
-- A deferred operation whose dead job is tried again. Its waiting time begins anew, or the reaper would time it
-- out before a worker can take the job.
update {keys} set
    state = {to:requeue}, error_code = null, last_run_at = {now},
    expires_at = {now} + ttl_ms
where state in ({from:requeue}) and mode = 'deferred' and id = (
    select operation_id from {jobs} where id = :id::text and state = 'dead' and answers = 1
) and {durable}
returning {now}

-- name: revive_phased  event: revive
-- A phased operation is left to the completer again.
update {keys} set
    state = {to:revive}, attempt = {nobodys}, locked_until = {now}, attempts = 0, error_code = null
where id = :operation_id::text and mode = 'phased' and state = 'dead_letter' and {durable}
returning {now}

-- name: revive_job
-- A dead job is tried again. The one that gives the answer only together with its operation: if that is settled,
-- its effect must not happen after all. What was said before its end is about none of its runs to come. A worker that
-- sleeps is told.
with job as (
    update {jobs} set state = 'live', attempt = null, attempts = 0, entered = 0, silences = 0, due_at = {now},
        run_at = greatest(run_at, done_at), done_at = null
    where id = :id::text and state = 'dead' and (answers = 0 or :revived::bigint = 1) and {durable}
    returning operation_id
)
select operation_id, pg_notify('samekey_jobs', '')::text from job

-- name: discard_job
update {jobs} set state = 'discarded', done_at = {now}
where id = :id::text and state = 'dead' and {durable}
returning operation_id

-- name: find_job
select id, operation_id, scope, key, tenant, name, payload, answers, attempts, created_at,
    state, error, provider_id, done_at
from {jobs} where id = :id::text

-- name: jobs_of
select id, operation_id, scope, key, tenant, name, payload, answers, attempts, created_at,
    state, error, provider_id, done_at
from {jobs} where operation_id = :operation_id::text order by created_at, id

-- name: phases_of
select name, kind, done, provider_id, intent_at, done_at from {phases}
where operation_id = :operation_id::text order by position

-- name: list_dead_jobs
select id, operation_id, scope, key, tenant, name, payload, answers, attempts, created_at,
    state, error, provider_id, done_at
from {jobs} where state = 'dead' order by created_at limit :limit::bigint

-- name: list_keys
-- Newest first. The planner sees the parameters: what is not asked for folds away, and an index is left for what is. A
-- tenant's scopes share a prefix in the primary key: those of its clients' keys, and those of its calls.
select {now}, {record} from {keys}
where (:state::text is null or state = :state::text)
    and (:tenant::text is null or (tenant = :tenant::text and (
        (scope >= :first_scope::text and scope < :last_scope::text)
        or (scope >= :first_call::text and scope < :last_call::text)
    )))
    and (:key::text is null or key = :key::text)
    and (:endpoint::text is null or endpoint = :endpoint::text)
    and (:created_after::bigint is null or created_at >= :created_after::bigint)
    and (:created_before::bigint is null or created_at < :created_before::bigint)
order by created_at desc limit :limit::bigint

-- name: look_through_keys
-- By what no index has: the newest so many are looked through, no more.
select {now}, {record} from (
    select * from {keys}
    where (:created_after::bigint is null or created_at >= :created_after::bigint)
        and (:created_before::bigint is null or created_at < :created_before::bigint)
    order by created_at desc limit :looked::bigint
) as newest
where (:state::text is null or state = :state::text)
    and (:key::text is null or key = :key::text)
    and (:endpoint::text is null or endpoint = :endpoint::text)
order by created_at desc limit :limit::bigint

-- name: looked_through_to
-- The next one after those; no row: there are no more.
select created_at from {keys}
where (:created_after::bigint is null or created_at >= :created_after::bigint)
    and (:created_before::bigint is null or created_at < :created_before::bigint)
order by created_at desc limit 1 offset :looked::bigint

-- name: ids_like
-- The operations and jobs whose ids begin so, gone ones too; two are too many.
select id from {keys} where id >= :first::text and id < :last::text
union select operation_id from {audit} where operation_id >= :first::text and operation_id < :last::text
union select id from {jobs} where id >= :first::text and id < :last::text
limit 3

-- name: noted_by_provider
-- Operations of whichever tenant that have this id of the provider's, at some effect or attempt.
-- What a former life of its key has made is not the present one's.
select {now}, {record} from {keys} where id = any(array(
    select operation_id from {effects} where provider_id = :provider_id::text
    union select operation_id from {made} where provider_id = :provider_id::text and attempt <> 'past'
    union select operation_id from {jobs} where provider_id = :provider_id::text
    limit :limit::bigint
))
order by created_at desc

-- name: newest_answer
-- One of the newest, whichever.
select answer_body from (
    select state, answer_body from {keys} order by created_at desc limit 1000
) as newest
where state = 'completed' and answer_body is not null limit 1

-- name: timeline
select at, from_state, to_state, attempt, actor, reason from {audit}
where scope = :scope::text and key = :key::text order by id

-- name: former_lives
-- How many operations of this key came to an end before this one, and are gone. One that was given back had no life: it
-- was gone while it was in progress.
select count(distinct operation_id)::bigint from {audit}
where scope = :scope::text and key = :key::text and operation_id <> :operation_id::text
    and to_state is null and from_state <> 'in_progress'

-- name: timeline_of_key
-- Where only the tenant is known, not the whole scope.
select at, from_state, to_state, attempt, actor, reason from {audit}
where tenant = :tenant::text and key = :key::text order by id

-- name: timeline_of_operation
select at, from_state, to_state, attempt, actor, reason from {audit}
where operation_id = :operation_id::text order by id

-- name: audited_keys
-- The keys that were ever claimed, newest first, page by page: to find one by its digest.
select id, scope, key, tenant from {audit}
where from_state is null and id < :before::bigint order by id desc limit :limit::bigint

-- name: stored_keys
-- The keys that are there, page by page.
select scope, key, tenant from {keys}
where (scope, key) > (:scope::text, :key::text) order by scope, key limit :limit::bigint

-- name: overview
-- What a doctor looks at, in one row. Counting a large table takes long, and its estimate
-- will do; past retention so many are counted. Of a few it is looked up which of them must stay.
select
    {now},
    (
        select case when c.reltuples > 100000 then c.reltuples::bigint
            else (select count(*) from (select 1 from {keys} limit {many}) as n)::bigint end
        from pg_class as c where c.oid = '{keys}'::regclass
    ),
    (select count(*) from {keys} where state = 'unknown')::bigint,
    (select min(last_run_at) from {keys} where state = 'unknown'),
    (select count(*) from {keys} where state = 'dead_letter')::bigint,
    (select count(*) from {keys} where state = 'in_progress' and locked_until <= {now})::bigint,
    (select min(locked_until) from {keys} where state = 'in_progress'),
    (
        select case when c.due > {few} then c.due
            else (select count(*) from ({oldest_past}) as k where not {kept:k}) end::bigint
        from (select count(*) as due from (select 1 from ({past_retention}) as p limit {many}) as s) as c
    ),
    (select count(*) from {jobs} where state = 'live')::bigint,
    (select min(due_at) from {jobs} where state = 'live'),
    (select count(*) from {jobs} where state = 'dead')::bigint,
    (select count(*) from {keys} where state = 'pending')::bigint,
    (select min(k.expires_at) from ({oldest_past}) as k where not {kept:k}),
    (select count(*) from {keys}
        where state = 'in_progress' and mode = 'phased' and locked_until <= {now})::bigint,
    (select min(locked_until) from {keys} where state = 'in_progress' and mode = 'phased'),
    (select min(locked_until) from {keys} where state = 'in_progress' and mode <> 'phased'),
    (select min(reconcile_after) from {keys} where state = 'unknown'),
    (select min(last_run_at) from {keys} where state = 'pending')

-- name: unknown_endpoints
select endpoint, count(*)::bigint from {keys} where state = 'unknown'
group by endpoint order by 2 desc, 1 limit 20

-- name: durations
-- How long recent operations took, in milliseconds, among the newest: most may be of another kind. What somebody else
-- found out later says nothing about a run, and has an error code.
select completed_at - last_run_at from (
    select state, mode, error_code, completed_at, last_run_at from {keys} order by created_at desc limit :looked::bigint
) as newest
where state = 'completed' and completed_at is not null and error_code is null
    and mode in ('leased', 'repeatable', 'phased')
limit :limit::bigint

-- name: parts_there
-- The indexes and triggers that are there and in use, by name.
select c.relname from pg_index as i
join pg_class as c on c.oid = i.indexrelid join pg_class as t on t.oid = i.indrelid
where i.indisvalid and t.relnamespace = (select relnamespace from pg_class where oid = '{keys}'::regclass)
union all
select g.tgname from pg_trigger as g join pg_class as t on t.oid = g.tgrelid
where g.tgenabled <> 'D' and t.relnamespace = (select relnamespace from pg_class where oid = '{keys}'::regclass)

-- name: server_facts
-- Settings and sizes that matter, as pairs.
select 'server_version_num', current_setting('server_version_num')
union all select 'in_recovery', pg_is_in_recovery()::int::text
union all select name, setting from pg_settings where name in (
    'fsync', 'synchronous_commit', 'idle_in_transaction_session_timeout', 'default_transaction_isolation',
    'autovacuum', 'max_connections'
)
union all select 'keys_bytes', pg_total_relation_size('{keys}'::regclass)::text
union all select 'audit_bytes', pg_total_relation_size('{audit}'::regclass)::text
union all select 'dead_rows ' || s.relname, s.n_dead_tup::text from pg_stat_all_tables as s
    join pg_class as c on c.oid = s.relid
    where c.relnamespace = (select relnamespace from pg_class where oid = '{keys}'::regclass)
union all select 'live_rows ' || s.relname, s.n_live_tup::text from pg_stat_all_tables as s
    join pg_class as c on c.oid = s.relid
    where c.relnamespace = (select relnamespace from pg_class where oid = '{keys}'::regclass)
union all select 'unvacuumed', string_agg(c.relname, ', ' order by c.relname) from pg_class as c
    where c.relnamespace = (select relnamespace from pg_class where oid = '{keys}'::regclass)
        and array_to_string(c.reloptions, ',') ~ 'autovacuum_enabled=(false|off|0|no)'
union all select 'connections', count(*)::text from pg_stat_activity where backend_type = 'client backend'
union all (
    select 'oldest_transaction', floor(extract(epoch from now() - xact_start))::bigint::text || ' s, session ' || pid
        || ' (' || coalesce(nullif(application_name, ''), usename::text, '?') || ', ' || coalesce(state, '?') || ')'
    from pg_stat_activity
    where xact_start is not null and pid <> pg_backend_pid() and backend_type = 'client backend'
        and datname = current_database()
    order by xact_start limit 1
)
