-- The outbox: jobs written with the handler's own transaction, taken by any number of workers.

-- name: accept  event: accept
-- The handler's transaction ends with this: its claim becomes a pending operation.
update {keys} set
    state = {to:accept}, locked_until = null, last_run_at = {now}, expires_at = {now} + ttl_ms, mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state = 'in_progress'
-- then
select {now}, expires_at, exists (select 1 from {jobs} as j where j.operation_id = {keys}.id)
from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: enqueue
-- One job, in the transaction of whoever wants it done.
insert into {jobs} (
    id, operation_id, scope, `key`, tenant, name, payload, answers, goes_on, state, attempts, due_at, created_at
)
values (
    :id, :operation_id, :scope, :key, :tenant, :name, :payload, :answers, :goes_on, 'live', 0, {now} + :delay_ms, {now}
)

-- name: has_jobs
-- Whether the operation has a job by now: what a savepoint took back was never there.
select 1 from {jobs} where operation_id = :operation_id limit 1

-- name: take_jobs
-- A batch of due jobs of one kind, each under an attempt id of its own. Taking counts nothing: enter_jobs does, when
-- the function is about to be called. Those that have had all their attempts are taken too: the worker writes them
-- off, because a job that kills its process can do no more itself.
-- Left alone: jobs that run in this very process, those of tenants that have no place left (looked for among those
-- that are due until :until), suspects where they are not asked for, and jobs whose lease ran out too lately. A suspect is a
-- job whose worker has fallen silent while running it, and not for the first time.
select id from {jobs} force index (samekey_jobs_due)
where state = 'live' and name = :name and due_at <= coalesce(:until, {now})
    and tenant not in (:full) and id not in (:here)
    and (:suspects = 1 or silences + entered < 2)
    and (attempt is null or due_at <= {now} - :patience_ms)
order by due_at limit :batch
for update skip locked
-- then
update {jobs} set
    attempt = concat(:token, id), due_at = {now} + :lease_ms, silences = silences + entered, entered = 0
where id in (:locked)
-- then
select id, operation_id, scope, `key`, tenant, name, payload, answers, attempt, attempts, sends, silences,
    created_at, {now}
from {jobs} where id in (:locked)

-- name: look_ahead
-- Where the oldest :ahead due jobs of a kind end; nothing if there are fewer.
select due_at from {jobs} force index (samekey_jobs_due)
where state = 'live' and name = :name and due_at <= {now}
order by due_at limit 1 offset :ahead

-- name: next_kind
-- The next kind of job that is waiting, when one of it may be taken, and what time it is. One statement for
-- each, because only the first entry of a range is always read alone: a backlog costs no more than a single job.
select name, due_at, {now} from {jobs} force index (samekey_jobs_due)
where state = 'live' and name > :after order by name, due_at limit 1

-- name: enter_jobs
-- Their functions are about to be called: now the attempts count. Said twice, it counts once. What a
-- former run has made is not what this one makes: a trigger keeps its id. Only who gives a job
-- back uncalled takes a send back, and no run begins
-- before the one that it follows, whatever the clock does.
select id from {jobs} where id in (:ids) and state = 'live' and attempt in (:attempts)
for update
-- then
update {jobs} set
    provider_id = case when entered = 1 then provider_id end,
    attempts = attempts + 1 - entered, sends = sends + 1 - entered, entered = 1,
    run_at = greatest({now}, coalesce(run_at, 0))
where id in (:locked)
-- then
select id, attempts, sends from {jobs} where id in (:locked)

-- name: give_back_jobs
-- Taken and not begun: they wait for another worker, or a better time, as if nobody had touched them. They may have
-- been entered all the same, if nobody heard of it: that attempt does not count, and
-- nothing was sent.
update {jobs} set due_at = {now} + :pause_ms, attempt = null, error = coalesce(:error, error),
    attempts = attempts - entered, sends = sends - entered, entered = 0
where id in (:ids) and state = 'live' and attempt in (:attempts)

-- name: leave_job
-- It goes on after its worker's end and cannot be stopped: it keeps its lease, and the attempt does not count.
update {jobs} set attempts = attempts - entered, entered = 0
where id = :id and attempt = :attempt and state = 'live'

-- name: renew_jobs
-- The running jobs of a worker at once; gives back the attempts that it renewed. A job that somebody has locked
-- is left out: it must not keep the others from being renewed.
select id from {jobs} where id in (:ids) and state = 'live' and attempt in (:attempts)
for update skip locked
-- then
update {jobs} set due_at = {now} + :lease_ms where id in (:locked)
-- then
select attempt from {jobs} where id in (:locked)

-- name: held_jobs
-- The attempts that still have their job, locked or not.
select attempt from {jobs} where id in (:ids) and state = 'live' and attempt in (:attempts)

-- name: entered_jobs
-- Whether a job of this operation has been begun and has not reported back.
select 1 from {jobs} where operation_id = :id and state = 'live' and entered = 1 limit 1

-- name: finish_job
-- Only the attempt that holds the job may finish it.
update {jobs} set state = 'done', done_at = {now}, provider_id = coalesce(:provider_id, provider_id),
    error = null, mark = :mark
where id = :id and attempt = :attempt and state = 'live'
-- then
select {now} from {jobs} where id = :id and mark = :mark

-- name: regain_job
-- A worker that was overtaken has done the job after all, and nobody runs it: it waits for
-- another try, is dead, or somebody's word alone has made it done.
update {jobs} set state = 'live', attempt = :attempt, done_at = null, mark = :mark
where id = :id and (state = 'dead' or (state in ('live', 'done') and attempt is null))
-- then
select {now} from {jobs} where id = :id and mark = :mark

-- name: retry_job
-- Back into the queue, to be tried again after a pause. It has spoken, so it is no suspect any more.
update {jobs} set due_at = {now} + :pause_ms, error = :error, attempt = null,
    provider_id = coalesce(:provider_id, provider_id),
    attempts = attempts - :forgiven * entered, entered = 0, silences = 0, mark = :mark
where id = :id and attempt = :attempt and state = 'live'
-- then
select {now} from {jobs} where id = :id and mark = :mark

-- name: bury_job
-- All attempts are used up: an operator decides.
update {jobs} set state = 'dead', done_at = {now}, error = :error,
    provider_id = coalesce(:provider_id, provider_id), mark = :mark
where id = :id and attempt = :attempt and state = 'live'
-- then
select {now} from {jobs} where id = :id and mark = :mark

-- name: ends_here
-- No function that is there now does the rest of it.
update {jobs} set goes_on = 0 where id = :id and attempt = :attempt and state = 'live'

-- name: yes_waits
-- Whether a provider's yes waits at a pending operation; nobody changes that before this transaction ends.
select disputed from {keys} where id = :operation_id and state = 'pending'
for update

-- name: complete_operation  event: complete
-- The final answer of a deferred operation.
update {keys} set
    state = {to:complete}, answer_version = :answer_version,
    answer_status = :answer_status, answer_headers = :answer_headers,
    answer_body = :answer_body, completed_at = {now},
    expires_at = {expiry},
    error_code = null, provider_id = coalesce(:provider_id, provider_id)
where scope = :scope and `key` = :key and id = :operation_id
    and state in ('pending', 'dead_letter')

-- name: bury_operation  event: give_up
-- The operation of a job that was given up; what is known of the provider's id is kept with it.
update {keys} set
    state = {to:give_up}, error_code = :error_code,
    provider_id = coalesce(
        :provider_id, (select j.provider_id from {jobs} as j where j.id = :job_id), provider_id
    )
where scope = :scope and `key` = :key and id = :operation_id and state = 'pending'

-- name: count_jobs
select state, count(*) from {jobs} group by state
