-- Finding out and overriding: the reconciler's and the operator's statements. Each act is audited.
--
-- Where :attempt is given, what was found out is about that attempt only: the operation may have been run
-- again and be unknown again meanwhile.

-- name: act_as
-- Who acts and why, until act_end; the audit triggers read it. The driver clears it after a rollback.
set @samekey_actor = convert(:actor using utf8mb4), @samekey_reason = convert(nullif(:reason, '') using utf8mb4)

-- name: act_end
set @samekey_actor = null, @samekey_reason = null

-- name: take_unknown
-- Unknown outcomes whose time has come. Moving their date on keeps other reconcilers away meanwhile.
select id from {keys} force index (samekey_keys_reconcile)
where state = 'unknown' and reconcile_after <= {now} and endpoint not in (:without)
order by reconcile_after limit :batch
for update skip locked
-- then
update {keys} set reconcile_after = {now} + :lease_ms, reconcile_tries = reconcile_tries + 1
where id in (:locked)
-- then
select reconcile_tries, {record} from {keys} where id in (:locked)

-- name: ask_again
update {keys} set reconcile_after = {now} + :pause_ms
where id = :operation_id and state = 'unknown'
    and (:attempt is null or attempt = :attempt)

-- name: found_executed  event: found_executed
-- It happened (or was declined): this is its answer. The last error code stays: it tells a record that was
-- found out from one that its holder completed.
update {keys} set
    state = {to:found_executed}, attempt = {nobodys}, answer_version = :answer_version,
    answer_status = :answer_status, answer_headers = :answer_headers,
    answer_body = :answer_body, completed_at = {now}, locked_until = null,
    expires_at = {expiry}, reconcile_after = null,
    reconcile_tries = 0, provider_id = coalesce(:provider_id, provider_id), mark = :mark
where id = :operation_id and state in ({from:found_executed})
    and (:attempt is null or attempt = :attempt)
-- then
select {now}, {record} from {keys} where id = :operation_id and mark = :mark

-- name: recall  event: recall
-- The provider, asked before a key that had expired runs again, knows its answer: the operation is done, as it was.
-- The attempt that was asked about must still be there.
update {keys} set
    state = {to:recall}, attempt = :attempt, answer_version = :answer_version,
    answer_status = :answer_status, answer_headers = :answer_headers,
    answer_body = :answer_body, completed_at = {now}, locked_until = null, expires_at = {expiry},
    error_code = null, reconcile_after = null, provider_id = coalesce(:provider_id, provider_id), mark = :mark
where id = :operation_id and attempt = :seen and {over}
-- then
select {now}, {record} from {keys} where id = :operation_id and mark = :mark

-- name: found_not_executed  event: found_not_executed
-- It never happened: one retry may run. Not for deferred work with a dead job: its handler has committed, so
-- running that again would write twice; the job is tried again instead. Nor against a provider's yes that waits.
update {keys} set
    state = {to:found_not_executed}, attempt = {nobodys}, locked_until = null, reconcile_after = null,
    reconcile_tries = 0,
    expires_at = {now} + ttl_ms, mark = :mark
where id = :operation_id and state in ({from:found_not_executed}) and disputed = 0
    and not (mode = 'deferred' and state = 'dead_letter')
    and (:attempt is null or attempt = :attempt)
-- then
select {now}, {record} from {keys} where id = :operation_id and mark = :mark

-- name: give_up_finding  event: give_up
update {keys} set state = {to:give_up}, attempt = {nobodys}, reconcile_after = null, mark = :mark
where id = :operation_id and state = 'unknown'
    and (:attempt is null or attempt = :attempt)
-- then
select {now} from {keys} where id = :operation_id and mark = :mark

-- name: evict_answer
-- Drops a stored answer; the fact stays, so a retry is told that it was done and is not run.
update {keys} set answer_status = null, answer_headers = null, answer_body = null, mark = :mark
where id = :operation_id and state = 'completed' and answer_status is not null
-- then
select {now}, {record} from {keys} where id = :operation_id and mark = :mark

-- name: extend
-- An operator keeps an answer for longer. What has ended meanwhile, or ends later already, stays as it is.
update {keys} set expires_at = :kept_until, mark = :mark
where id = :operation_id and attempt = :attempt and state = 'completed'
    and expires_at > {now} and expires_at < :kept_until
-- then
select {now}, {record} from {keys} where id = :operation_id and mark = :mark

-- name: reopen  event: reopen
-- A failure that was remembered as the answer may be tried again, once. Not of phased or deferred work, which would
-- begin anew and do its finished parts twice; nor while a provider says that it happened.
update {keys} set
    state = {to:reopen}, attempt = {nobodys}, answer_version = null, answer_status = null, answer_headers = null,
    answer_body = null, completed_at = null, error_code = 'reopened', expires_at = {now} + ttl_ms, mark = :mark
where id = :operation_id and attempt = :attempt and state in ({from:reopen}) and answer_status >= 400
    and mode in ('atomic', 'leased', 'repeatable') and expires_at > {now} and disputed = 0
    and not exists (
        select 1 from {evidence} as v where v.operation_id = :operation_id and v.says = 'executed'
            and v.state in ('waiting', 'ambiguous', 'conflict')
    )
-- then
select {now}, {record} from {keys} where id = :operation_id and mark = :mark

-- name: note_act
-- An act that changes no state still leaves its trace.
insert into {audit} (at, operation_id, scope, `key`, tenant, from_state, to_state, attempt, actor, reason)
select {now}, id, scope, `key`, tenant, state, state, attempt, :actor, :reason
from {keys} where id = :operation_id

-- name: note_job_act
-- The same of a job whose operation is gone: its key has had another life, or none. The job knows whose it was.
insert into {audit} (at, operation_id, scope, `key`, tenant, from_state, to_state, attempt, actor, reason)
select {now}, operation_id, scope, `key`, tenant, 'dead', state, attempt, :actor, :reason
from {jobs} as j where j.id = :id and not exists (select 1 from {keys} as k where k.id = j.operation_id)

-- name: drop_intents
-- Effects that provably never happened: the retry makes the call again.
delete from {phases} where operation_id = :operation_id and done = 0

-- name: settle_jobs
-- The operation is settled, so nobody may have its dead job tried again.
update {jobs} set state = 'discarded', done_at = {now}
where operation_id = :operation_id and state = 'dead' and answers = 1

-- name: close_dead  event: found_executed
-- An operator gives a dead operation its final answer.
update {keys} set
    state = {to:found_executed}, attempt = {nobodys}, answer_version = :answer_version,
    answer_status = :answer_status, answer_headers = :answer_headers,
    answer_body = :answer_body, completed_at = {now}, locked_until = null,
    expires_at = {expiry}, reconcile_after = null, reconcile_tries = 0,
    mark = :mark
where id = :operation_id and state = 'dead_letter'
-- then
select {now}, {record} from {keys} where id = :operation_id and mark = :mark

-- name: revive_pending  event: requeue
-- A deferred operation whose dead job is tried again. Its waiting time begins anew, or the reaper would time it
-- out before a worker can take the job. The job names its operation, so the two are locked together.
select k.id from {jobs} as j join {keys} as k on k.id = j.operation_id
where j.id = :id and j.state = 'dead' and j.answers = 1
    and k.state in ({from:requeue}) and k.mode = 'deferred'
for update
-- then
update {keys} set
    state = {to:requeue}, error_code = null, expires_at = {now} + ttl_ms,
    last_run_at = {now}
where id in (:locked)

-- name: revive_phased  event: revive
-- A phased operation is left to the completer again.
update {keys} set
    state = {to:revive}, attempt = {nobodys}, locked_until = {now}, attempts = 0, error_code = null, mark = :mark
where id = :operation_id and mode = 'phased' and state = 'dead_letter'
-- then
select {now} from {keys} where id = :operation_id and mark = :mark

-- name: revive_job
-- A dead job is tried again. The one that gives the answer only together with its operation: if that is settled,
-- its effect must not happen after all. What was said before its end is about none of its runs to come.
update {jobs} set state = 'live', attempt = null, attempts = 0, entered = 0, silences = 0, due_at = {now},
    run_at = greatest(run_at, done_at), done_at = null, mark = :mark
where id = :id and state = 'dead' and (answers = 0 or :revived = 1)
-- then
select operation_id from {jobs} where id = :id and mark = :mark

-- name: discard_job
update {jobs} set state = 'discarded', done_at = {now}, mark = :mark
where id = :id and state = 'dead'
-- then
select operation_id from {jobs} where id = :id and mark = :mark

-- name: find_job
select id, operation_id, scope, `key`, tenant, name, payload, answers, attempts, created_at,
    state, error, provider_id, done_at
from {jobs} where id = :id

-- name: jobs_of
select id, operation_id, scope, `key`, tenant, name, payload, answers, attempts, created_at,
    state, error, provider_id, done_at
from {jobs} where operation_id = :operation_id order by created_at, id

-- name: phases_of
select name, kind, done, provider_id, intent_at, done_at from {phases}
where operation_id = :operation_id order by position

-- name: list_dead_jobs
select id, operation_id, scope, `key`, tenant, name, payload, answers, attempts, created_at,
    state, error, provider_id, done_at
from {jobs} where state = 'dead' order by created_at limit :limit

-- name: list_keys
-- Newest first. A tenant's scopes share a prefix in the primary key: those of its clients' keys, and those of its calls.
select {now}, {record} from {keys}
where (:state is null or state = :state)
    and (:tenant is null or (tenant = :tenant and (
        (scope >= :first_scope and scope < :last_scope)
        or (scope >= :first_call and scope < :last_call)
    )))
    and (:key is null or `key` = :key)
    and (:endpoint is null or endpoint = :endpoint)
    and (:created_after is null or created_at >= :created_after)
    and (:created_before is null or created_at < :created_before)
order by created_at desc limit :limit

-- name: look_through_keys
-- By what no index has: the newest so many are looked through, no more.
select {now}, {record} from (
    select * from {keys}
    where (:created_after is null or created_at >= :created_after)
        and (:created_before is null or created_at < :created_before)
    order by created_at desc limit :looked
) as newest
where (:state is null or state = :state)
    and (:key is null or `key` = :key)
    and (:endpoint is null or endpoint = :endpoint)
order by created_at desc limit :limit

-- name: looked_through_to
-- The next one after those; no row: there are no more.
select created_at from {keys}
where (:created_after is null or created_at >= :created_after)
    and (:created_before is null or created_at < :created_before)
order by created_at desc limit 1 offset :looked

-- name: ids_like
-- The operations and jobs whose ids begin so, gone ones too; two are too many.
select id from {keys} where id >= :first and id < :last
union select operation_id from {audit} where operation_id >= :first and operation_id < :last
union select id from {jobs} where id >= :first and id < :last
limit 3

-- name: noted_by_provider
-- Operations of whichever tenant that have this id of the provider's, at some effect or attempt.
-- What a former life of its key has made is not the present one's.
select {now}, {record} from {keys} where id in (select operation_id from (
    select operation_id from {effects} where provider_id = :provider_id
    union select operation_id from {made} where provider_id = :provider_id and attempt <> 'past'
    union select operation_id from {jobs} where provider_id = :provider_id
    limit :limit
) as noted)
order by created_at desc

-- name: newest_answer
-- One of the newest, whichever.
select answer_body from (
    select state, answer_body from {keys} order by created_at desc limit 1000
) as newest
where state = 'completed' and answer_body is not null limit 1

-- name: timeline
select at, from_state, to_state, attempt, actor, reason from {audit}
where scope = :scope and `key` = :key order by id

-- name: former_lives
-- How many operations of this key came to an end before this one, and are gone. One that was given back had no life: it
-- was gone while it was in progress.
select count(distinct operation_id) from {audit}
where scope = :scope and `key` = :key and operation_id <> :operation_id
    and to_state is null and from_state <> 'in_progress'

-- name: timeline_of_key
-- Where only the tenant is known, not the whole scope.
select at, from_state, to_state, attempt, actor, reason from {audit}
where tenant = :tenant and `key` = :key order by id

-- name: timeline_of_operation
select at, from_state, to_state, attempt, actor, reason from {audit}
where operation_id = :operation_id order by id

-- name: audited_keys
-- The keys that were ever claimed, newest first, page by page: to find one by its digest.
select id, scope, `key`, tenant from {audit}
where from_state is null and id < :before order by id desc limit :limit

-- name: stored_keys
-- The keys that are there, page by page.
select scope, `key`, tenant from {keys}
where scope > :scope or (scope = :scope and `key` > :key) order by scope, `key` limit :limit

-- name: overview
-- What a doctor looks at, in one row. Counting a large table takes long, and its estimate
-- will do. Past retention so many are counted; of a few it is looked up
-- which of them must stay.
select
    {now},
    (
        select case when t.table_rows > 100000 then t.table_rows else (select count(*) from {keys}) end
        from information_schema.tables as t where t.table_schema = database() and t.table_name = '{keys}'
    ),
    (select count(*) from {keys} where state = 'unknown'),
    (select min(last_run_at) from {keys} where state = 'unknown'),
    (select count(*) from {keys} where state = 'dead_letter'),
    (select count(*) from {keys} where state = 'in_progress' and locked_until <= {now}),
    (select min(locked_until) from {keys} where state = 'in_progress'),
    (
        select case when c.due > {few} then c.due
            else (select count(*) from ({oldest_past}) as k where not {kept:k}) end
        from (select count(*) as due from (select 1 from ({past_retention}) as p limit {many}) as s) as c
    ),
    (select count(*) from {jobs} where state = 'live'),
    (select min(due_at) from {jobs} where state = 'live'),
    (select count(*) from {jobs} where state = 'dead'),
    (select count(*) from {keys} where state = 'pending'),
    (select min(k.expires_at) from ({oldest_past}) as k where not {kept:k}),
    (select count(*) from {keys} where state = 'in_progress' and mode = 'phased' and locked_until <= {now}),
    (select min(locked_until) from {keys} where state = 'in_progress' and mode = 'phased'),
    (select min(locked_until) from {keys} where state = 'in_progress' and mode <> 'phased'),
    (select min(reconcile_after) from {keys} where state = 'unknown'),
    (select min(last_run_at) from {keys} where state = 'pending')

-- name: unknown_endpoints
select endpoint, count(*) from {keys} where state = 'unknown'
group by endpoint order by 2 desc, 1 limit 20

-- name: durations
-- How long recent operations took, in milliseconds, among the newest: most may be of another kind. What somebody else
-- found out later says nothing about a run, and has an error code.
select completed_at - last_run_at from (
    select state, mode, error_code, completed_at, last_run_at from {keys} order by created_at desc limit :looked
) as newest
where state = 'completed' and completed_at is not null and error_code is null
    and mode in ('leased', 'repeatable', 'phased')
limit :limit

-- name: parts_there
-- The indexes and triggers that are there and in use, by name. Triggers are shown only to who has the right to make them:
-- the last line says whether that is so.
select index_name from information_schema.statistics where table_schema = database()
union select trigger_name from information_schema.triggers where trigger_schema = database()
union select '{sees_triggers}' from information_schema.user_privileges where privilege_type = 'TRIGGER'
union select '{sees_triggers}' from information_schema.schema_privileges
    where privilege_type = 'TRIGGER' and database() like table_schema
union select '{sees_triggers}' from information_schema.table_privileges
    where privilege_type = 'TRIGGER' and table_schema = database() and table_name = '{keys}'

-- name: server_facts
-- Settings and sizes that matter, as pairs.
select 'version', version()
union all select 'innodb_flush_log_at_trx_commit', cast(@@global.innodb_flush_log_at_trx_commit as char)
union all select 'sync_binlog', cast(@@global.sync_binlog as char)
union all select 'binlog_format', @@global.binlog_format
union all select 'log_bin', cast(@@global.log_bin as char)
union all select 'read_only', cast(@@global.read_only as char)
union all select 'max_allowed_packet', cast(@@global.max_allowed_packet as char)
union all select 'max_connections', cast(@@global.max_connections as char)
union all select 'keys_bytes', (
    select cast(data_length + index_length as char) from information_schema.tables
    where table_schema = database() and table_name = '{keys}'
)
union all select 'audit_bytes', (
    select cast(data_length + index_length as char) from information_schema.tables
    where table_schema = database() and table_name = '{audit}'
)
union all select concat('used_room ', table_name), cast(data_length as char) from information_schema.tables
    where table_schema = database() and table_name like 'samekey\\_%'
union all select concat('free_room ', table_name), cast(data_free as char) from information_schema.tables
    where table_schema = database() and table_name like 'samekey\\_%'

-- name: server_status
-- How busy it is, and how much of what was changed or deleted is not cleared away yet. These stand in no table that every
-- version has.
show global status where variable_name in ('Threads_connected', 'Innodb_history_list_length')

-- name: open_transaction
-- The oldest transaction that is open. Only who has the right PROCESS is shown it.
select concat(
    timestampdiff(second, convert_tz(trx_started, 'SYSTEM', @@session.time_zone), now()), ' s, session ',
    trx_mysql_thread_id
) from information_schema.innodb_trx where trx_mysql_thread_id <> connection_id() order by trx_started limit 1
