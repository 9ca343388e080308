-- The outbox: jobs written with the handler's own transaction, taken by any number of workers.

-- name: accept  event: accept
-- A deferred operation: the record appears, pending, with the handler's writes and its jobs. The proof and the
-- arbiter are those of atomic work (keys.sql), and a former life has made room in the same way.
with proof as materialized (
    select
        {same} as same,
        pg_current_xact_id_if_assigned() is not null as wrote
), written as (
    insert into {keys} as k (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
        attempts, downstream, life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, expires_at
    )
    select
        :scope::text, :key::text, :id::text, :tenant::text, :endpoint::text, :fingerprint::bytea,
        :fingerprint_version::text, {to:accept}, :mode::text, :attempt::text, 1, :downstream::text,
        :life::bigint, :ttl_ms::bigint, :ttl_from::text, :after_expiry::text, {now}, {now}, {now} + :ttl_ms::bigint
    from proof where proof.same
    on conflict (scope, key) do update set
        state = {to:accept}, mode = excluded.mode, attempt = excluded.attempt,
        attempts = k.attempts + 1, endpoint = excluded.endpoint, fingerprint = excluded.fingerprint,
        fingerprint_version = excluded.fingerprint_version, downstream = excluded.downstream,
        answer_version = null, answer_status = null, answer_headers = null, answer_body = null,
        provider_id = null, locked_until = null, error_code = null, reconcile_after = null,
        recovery_point = null, completed_at = null, last_run_at = excluded.last_run_at,
        expires_at = {now} + k.ttl_ms
        where :reused::bigint = 0 and k.attempt = :seen::text and k.state = 'failed_retryable'
    returning k.expires_at
)
select
    proof.same::int::bigint, proof.wrote::int::bigint, written.expires_at,
    pg_current_xact_id_if_assigned()::text,
    exists (select 1 from {jobs} as j where j.operation_id = :id::text)::int::bigint
from proof left join written on true

-- name: enqueue
-- One job, in the transaction of whoever wants it done. The notification is delivered when that commits.
with job as (
    insert into {jobs} (
        id, operation_id, scope, key, tenant, name, payload, answers, goes_on, state, attempts, due_at, created_at
    )
    values (
        :id::text, :operation_id::text, :scope::text, :key::text, :tenant::text, :name::text,
        :payload::bytea, :answers::bigint, :goes_on::bigint, 'live', 0, {now} + :delay_ms::bigint, {now}
    )
    returning id
)
select pg_notify('samekey_jobs', '')::text from job

-- name: has_jobs
-- Whether the operation has a job by now: what a savepoint took back was never there.
select 1::bigint from {jobs} where operation_id = :operation_id::text limit 1

-- name: take_jobs
-- A batch of due jobs of one kind, each under an attempt id of its own. Taking counts nothing: enter_jobs does, when
-- the function is about to be called. Those that have had all their attempts are taken too: the worker writes them
-- off, because a job that kills its process can do no more itself.
-- Left alone: jobs that run in this very process, those of tenants that have no place left (looked for among those
-- that are due until :until), suspects where they are not asked for, and jobs whose lease ran out too lately. A suspect is a
-- job whose worker has fallen silent while running it, and not for the first time.
-- The array is filled once, before the update, and keeps the plan on the primary key whatever the
-- statistics say; a subquery in FROM may be run again for each row and take more than it was asked for.
update {jobs} as j set
    attempt = :token::text || j.id, due_at = {now} + :lease_ms::bigint,
    silences = j.silences + j.entered, entered = 0
where j.id = any(array(
    select id from {jobs}
    where state = 'live' and name = :name::text and due_at <= coalesce(:until::bigint, {now})
        and tenant <> all(:full::text[]) and id <> all(:here::text[])
        and (:suspects::bigint = 1 or silences + entered < 2)
        and (attempt is null or due_at <= {now} - :patience_ms::bigint)
    order by due_at limit :batch::bigint for update skip locked
)) and {durable}
returning j.id, j.operation_id, j.scope, j.key, j.tenant, j.name, j.payload, j.answers, j.attempt,
    j.attempts, j.sends, j.silences, j.created_at, {now}

-- name: look_ahead
-- Where the oldest :ahead due jobs of a kind end; nothing if there are fewer.
select due_at from {jobs} where state = 'live' and name = :name::text and due_at <= {now}
order by due_at offset :ahead::bigint limit 1

-- name: due_jobs
-- Each kind of job that is waiting, and how long until one of it may be taken, in milliseconds. From kind to kind
-- by the index: a backlog costs no more than a single job.
with recursive kinds as (
    select min(name) as name from {jobs} where state = 'live'
    union all
    select (select min(j.name) from {jobs} as j where j.state = 'live' and j.name > kinds.name)
    from kinds where kinds.name is not null
)
select name, (select min(j.due_at) from {jobs} as j where j.state = 'live' and j.name = kinds.name) - {now}
from kinds where name is not null

-- name: enter_jobs
-- Their functions are about to be called: now the attempts count. Said twice, it counts once. What a
-- former run has made is not what this one makes: a trigger keeps its id. Only who gives a job
-- back uncalled takes a send back, and no run begins
-- before the one that it follows, whatever the clock does.
update {jobs} set
    provider_id = case when entered = 1 then provider_id end,
    attempts = attempts + 1 - entered, sends = sends + 1 - entered, entered = 1,
    run_at = greatest({now}, coalesce(run_at, 0))
where id = any(:ids::text[]) and attempt = any(:attempts::text[]) and state = 'live' and {durable}
returning id, attempts, sends

-- name: give_back_jobs
-- Taken and not begun: they wait for another worker, or a better time, as if nobody had touched them. They may have
-- been entered all the same, if nobody heard of it: that attempt does not count, and
-- nothing was sent.
with job as (
    update {jobs} set due_at = {now} + :pause_ms::bigint, attempt = null, error = coalesce(:error::text, error),
        attempts = attempts - entered, sends = sends - entered, entered = 0
    where id = any(:ids::text[]) and attempt = any(:attempts::text[]) and state = 'live' and {durable}
    returning id
)
select pg_notify('samekey_jobs', '')::text from job

-- name: leave_job
-- It goes on after its worker's end and cannot be stopped: it keeps its lease, and the attempt does not count.
update {jobs} set attempts = attempts - entered, entered = 0
where id = :id::text and attempt = :attempt::text and state = 'live' and {durable}
returning {now}

-- name: renew_jobs
-- The running jobs of a worker at once; gives back the attempts that it renewed. A job that somebody has locked
-- is left out: it must not keep the others from being renewed.
update {jobs} set due_at = {now} + :lease_ms::bigint
where id = any(array(
    select id from {jobs} where id = any(:ids::text[]) and attempt = any(:attempts::text[]) and state = 'live'
    for update skip locked
))
returning attempt

-- name: held_jobs
-- The attempts that still have their job, locked or not.
select attempt from {jobs} where id = any(:ids::text[]) and attempt = any(:attempts::text[]) and state = 'live'

-- name: entered_jobs
-- Whether a job of this operation has been begun and has not reported back. By the operation alone: the planner must
-- not look through a backlog for it.
select 1::bigint from (select state, entered from {jobs} where operation_id = :id::text offset 0) as j
where j.state = 'live' and j.entered = 1 limit 1

-- name: finish_job
-- Only the attempt that holds the job may finish it.
update {jobs} set state = 'done', done_at = {now}, provider_id = coalesce(:provider_id::text, provider_id),
    error = null
where id = :id::text and attempt = :attempt::text and state = 'live' and {durable}
returning {now}

-- name: regain_job
-- A worker that was overtaken has done the job after all, and nobody runs it: it waits for
-- another try, is dead, or somebody's word alone has made it done.
update {jobs} set state = 'live', attempt = :attempt::text, done_at = null
where id = :id::text and (state = 'dead' or (state in ('live', 'done') and attempt is null)) and {durable}
returning {now}

-- name: retry_job
-- Back into the queue, to be tried again after a pause. It has spoken, so it is no suspect any more. Whoever sleeps
-- is told: the pause may be shorter than the sleep.
with job as (
    update {jobs} set due_at = {now} + :pause_ms::bigint, error = :error::text, attempt = null,
        provider_id = coalesce(:provider_id::text, provider_id),
        attempts = attempts - :forgiven::bigint * entered, entered = 0, silences = 0
    where id = :id::text and attempt = :attempt::text and state = 'live' and {durable}
    returning id
)
select pg_notify('samekey_jobs', '')::text from job

-- name: bury_job
-- All attempts are used up: an operator decides.
update {jobs} set state = 'dead', done_at = {now}, error = :error::text,
    provider_id = coalesce(:provider_id::text, provider_id)
where id = :id::text and attempt = :attempt::text and state = 'live' and {durable}
returning {now}

-- name: job_proof
-- What tells the transaction of a job's writes from another one, at its beginning and at its end.
select (extract(epoch from now()) * 1000000)::bigint, pg_backend_pid()::bigint

-- name: ends_here
-- No function that is there now does the rest of it.
update {jobs} set goes_on = 0 where id = :id::text and attempt = :attempt::text and state = 'live'

-- name: yes_waits
-- Whether a provider's yes waits at a pending operation; nobody changes that before this transaction ends.
select disputed from {keys} where id = :operation_id::text and state = 'pending'
for update

-- name: complete_operation  event: complete
-- The final answer of a deferred operation.
update {keys} set
    state = {to:complete}, answer_version = :answer_version::bigint,
    answer_status = :answer_status::bigint, answer_headers = :answer_headers::bytea,
    answer_body = :answer_body::bytea, completed_at = {now},
    expires_at = {expiry},
    error_code = null, provider_id = coalesce(:provider_id::text, provider_id)
where scope = :scope::text and key = :key::text and id = :operation_id::text
    and state in ('pending', 'dead_letter') and {durable} and {actor:worker}
returning {now}

-- name: bury_operation  event: give_up
-- The operation of a job that was given up; what is known of the provider's id is kept with it.
update {keys} set
    state = {to:give_up}, error_code = :error_code::text,
    provider_id = coalesce(
        :provider_id::text, (select j.provider_id from {jobs} as j where j.id = :job_id::text), provider_id
    )
where scope = :scope::text and key = :key::text and id = :operation_id::text
    and state = 'pending' and {durable} and {actor:worker}
returning {now}

-- name: count_jobs
select state, count(*)::bigint from {jobs} group by state
