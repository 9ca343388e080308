-- Effects and evidence: what was sent, what providers have said of it, and what came of that.

-- name: effects_of
-- What an operation may have sent. A job's own row tells how often it was begun, and what became
-- of it. MySQL gives what is made of two texts as a blob, unless it is told that it is a text.
select e.step, e.kind, e.place, e.attempt, e.source, e.downstream_key,
    convert(coalesce(j.provider_id, e.provider_id) using utf8mb4),
    case when e.kind = 'job' then coalesce(j.sends, 0) else e.sends end,
    case when e.kind = 'job' then j.run_at else e.sent_at end,
    e.outcome, j.state, j.answers
from {effects} as e left join {jobs} as j on e.kind = 'job' and j.id = e.place
where e.operation_id = :operation_id
order by e.sent_at is null, e.sent_at, e.place, e.step

-- name: find_by_provider_id
-- Of one tenant: each effect that has this id, with its operation. Without a source, of whichever. More than
-- these nobody could tell apart; those that are open first.
select f.found_key, {now}, {record} from {keys} join (
    select operation_id as found_id, downstream_key as found_key from {effects}
    where tenant = :tenant and provider_id = :provider_id and kind <> 'job'
        and (:source is null or source = :source)
    union
    select operation_id, downstream_key from {made}
    where tenant = :tenant and provider_id = :provider_id
        and (:source is null or source = :source) and attempt <> 'past'
    union
    select e.operation_id, e.downstream_key from {jobs} as j
    join {effects} as e on e.operation_id = j.operation_id and e.place = j.id and e.kind = 'job'
    where j.provider_id = :provider_id and j.tenant = :tenant
        and (:source is null or e.source = :source)
) as f on id = f.found_id
order by case when state in ('completed', 'expired') then 1 else 0 end limit 100

-- name: note_sent
-- An effect of phased work that is about to be tried, once more if it is there already.
insert into {effects} (
    operation_id, step, kind, place, attempt, tenant, source, downstream_key, sends, sent_at
)
select k.id, :step, 'phase', :place, :attempt, k.tenant, :source, :downstream_key, 1, {now}
from {keys} as k where k.id = :operation_id
on duplicate key update
    provider_id = if({effects}.attempt = :attempt, {effects}.provider_id, null), attempt = :attempt, source = coalesce(:source, {effects}.source), sends = sends + 1,
    sent_at = {now}, place = :place, outcome = null, settled_at = null

-- name: note_call
-- What a leased handler may have sent, with its outcome; for a later attempt it is sent again. A provider's id
-- is that of the attempt that noted it; it is compared before the attempt is written.
insert into {effects} (
    operation_id, step, kind, place, attempt, tenant, source, downstream_key, provider_id, sends, sent_at
)
select k.id, :step, 'leased', :place, k.attempt, k.tenant, :source, :downstream_key, :provider_id, k.attempts,
    k.last_run_at
from {keys} as k where k.scope = :scope and k.`key` = :key
on duplicate key update
    provider_id = if({effects}.attempt = k.attempt, coalesce(:provider_id, {effects}.provider_id), :provider_id),
    attempt = k.attempt, source = coalesce(:source, {effects}.source), place = :place,
    downstream_key = coalesce(:downstream_key, {effects}.downstream_key), sends = k.attempts,
    sent_at = k.last_run_at, outcome = null, settled_at = null

-- name: note_job
-- A job's effect, with the job: nothing is sent yet.
insert into {effects} (operation_id, step, kind, place, attempt, tenant, source, downstream_key, sends)
values (
    :operation_id, :step, 'job', :place, '', :tenant, :source,
    :downstream_key, 0
)
on duplicate key update step = :step

-- name: note_effect
-- What an attempt at a phase has made; unless another one has been sent since, which has its own.
update {effects} set provider_id = :provider_id, source = coalesce(source, :source)
where operation_id = :operation_id and step = :step and attempt = :attempt

-- name: note_made
-- The same where another attempt was sent since: it stays what that one has made.
insert ignore into {made} (operation_id, step, attempt, tenant, source, downstream_key, provider_id)
select operation_id, step, :attempt, tenant, coalesce(source, :source), downstream_key, :provider_id
from {effects} where operation_id = :operation_id and step = :step and attempt <> :attempt

-- name: note_former
-- What an attempt has made that is not the current one any more, as its holder tells late.
insert ignore into {made} (operation_id, step, attempt, tenant, source, downstream_key, provider_id)
select id, :step, :attempt, tenant, :source, :downstream_key, :provider_id
from {keys} where id = :operation_id

-- name: made_of
-- The provider's ids that other attempts than the last one have noted, by step.
select m.step, m.attempt, m.provider_id from {made} as m
where m.operation_id = :operation_id and m.attempt <> 'past'
order by m.step, m.attempt, m.provider_id

-- name: past_ids
-- The provider's ids that former lives of the key have noted: no attempt of this one's.
select distinct provider_id from {made} where operation_id = :operation_id and attempt = 'past'

-- name: settle_effect
update {effects} set
    outcome = :said, settled_at = {now}, provider_id = coalesce(:provider_id, provider_id),
    source = coalesce(source, :source)
where operation_id = :operation_id and step = :step

-- name: lock_operation
select {now}, {record} from {keys} where id = :operation_id for update

-- name: go_on  event: go_on
-- An effect was found out: the run goes on, by the completer or a retry. It counts its attempts anew.
update {keys} set
    state = {to:go_on}, attempt = {nobodys}, locked_until = {now}, attempts = 1, error_code = null, reconcile_after = null,
    reconcile_tries = 0, mark = :mark
where id = :operation_id and attempt = :attempt and mode = 'phased'
    and state in ({from:go_on})
-- then
select {now} from {keys} where id = :operation_id and mark = :mark

-- name: found_phase
-- What was found out is the phase's result. No row: it has another one, or another phase stands there.
-- What decides whether it is written comes last.
insert into {phases} (
    operation_id, position, name, kind, done, result, provider_id, intent_at, done_at, mark
)
values (
    :operation_id, :position, :name, 'effect', 1, :result, :provider_id, {now}, {now}, :mark
)
on duplicate key update
    result = if(done = 0 and name = :name, :result, result),
    provider_id = if(done = 0 and name = :name, coalesce(:provider_id, provider_id), provider_id),
    done_at = if(done = 0 and name = :name, {now}, done_at),
    mark = if(done = 0 and name = :name, :mark, mark),
    done = if(done = 0 and name = :name, 1, done)
-- then
select position from {phases} where operation_id = :operation_id and position = :position and mark = :mark

-- name: job_goes_on
-- A dead job whose function takes what was found out, by the code that enqueued it or by the code that is there
-- now: a worker has it do the rest, with all of its attempts.
update {jobs} set state = 'live', attempt = null, attempts = 0, entered = 0, silences = 0, due_at = {now},
    run_at = greatest(run_at, done_at), done_at = null, provider_id = coalesce(:provider_id, provider_id),
    mark = :mark
where id = :id and state = 'dead' and (goes_on = 1 or name in (:takers))
-- then
select id from {jobs} where id = :id and mark = :mark

-- name: pending_again  event: requeue
-- The operation of such a job, if that one answers. Its waiting time begins anew.
update {keys} set state = {to:requeue}, error_code = null, last_run_at = {now}, expires_at = {now} + ttl_ms,
    mark = :mark
where id = :operation_id and mode = 'deferred' and state in ({from:requeue})
-- then
select {now} from {keys} where id = :operation_id and mark = :mark

-- name: told_about
-- What providers have said about one effect, and nobody has doubted.
select {event} from {evidence}
where operation_id = :operation_id and about = :about and state in ('waiting', 'used')
order by received_at, source, event_id

-- name: found_job
-- Nobody's run has ended it: a worker that still has its own end in hand makes its writes, and the jobs after it.
update {jobs} set state = 'done', attempt = null, done_at = {now}, provider_id = coalesce(:provider_id, provider_id),
    mark = :mark
where id = :id and state = 'dead'
-- then
select id from {jobs} where id = :id and mark = :mark

-- name: find_event
-- What was noted of an event about this operation, of each of its effects.
select {event} from {evidence}
where source = :source and event_id = :event_id and operation_id = :operation_id
order by about

-- name: note_evidence
-- An event of a provider's, once for each effect that it is about; its latest state counts.
-- What decides comes last.
insert into {evidence} (
    source, event_id, operation_id, about, provider_id, outcome, says, state, occurred_at, received_at, of_this_life
)
values (
    :source, :event_id, :operation_id, :about, :provider_id, :outcome, :says, :state, :occurred_at, {now},
    :of_this_life
)
on duplicate key update
    outcome = if(state in ('waiting', 'ambiguous'), :outcome, outcome),
    says = if(state in ('waiting', 'ambiguous'), :says, says),
    provider_id = if(state in ('waiting', 'ambiguous'), coalesce(:provider_id, provider_id), provider_id),
    of_this_life = if(state in ('waiting', 'ambiguous'), greatest(of_this_life, :of_this_life), of_this_life),
    state = if(state in ('waiting', 'ambiguous'), :state, state)

-- name: heard_of
-- The provider's objects that events about an operation have named which are over.
select distinct provider_id from {evidence}
where operation_id = :operation_id and provider_id is not null and state in ('used', 'late', 'conflict')

-- name: waiting_evidence
select {event} from {evidence}
where operation_id = :operation_id and state = 'waiting' order by received_at, source, event_id

-- name: unsettled_evidence
-- Of an operation, what nobody has used or dismissed: also what fits other operations as well.
select {event} from {evidence}
where operation_id = :operation_id and state in ('waiting', 'ambiguous') order by received_at, source, event_id

-- name: dispute  event: dispute
-- A provider says that it happened, and that word waits. What was free to run again (:freed) is not any more.
-- Of a tombstone it is forgotten what had been sent.
update {keys} set
    error_code = case when state = 'expired' then 'not_noted' else error_code end,
    state = case when :freed = 1 and state in ({from:dispute}) then {to:dispute} else state end,
    reconcile_after = case when :freed = 1 and state in ({from:dispute}) then {now} else reconcile_after end, disputed = 1
where id = :operation_id and state <> 'completed' and (state <> 'expired' or :freed = 1)

-- name: undispute
-- Unless another yes waits.
update {keys} set disputed = 0
where id = :operation_id and disputed = 1 and not exists (
    select 1 from {evidence} as v
    where v.operation_id = :operation_id and v.state in ('waiting', 'ambiguous') and v.says = 'executed'
)

-- name: keep_for_now
-- A word that somebody must see to keeps its operation, also from a reuse or a reaper that waits for this row and has
-- looked for such words before: what has not expired is looked at again.
update {keys} set expires_at = {now} + 60000
where id = :operation_id and expires_at < {now} + 60000

-- name: effect_settled
-- An effect has its result, whoever told it: a yes that waits about it has nothing more to say, nor has one that fits
-- others too and names the same object. Nor has one that names no effect, once every effect that was sent has one.
-- But of what was sent more than once, another object than its result's may have been made by another send.
update {evidence} set state = case when about = :downstream_key and provider_id <> :provider_id and exists (
    select 1 from {effects} as e
    where e.operation_id = :operation_id and e.downstream_key = :downstream_key and e.sends > 1
) then 'conflict' else 'used' end
where operation_id = :operation_id and says = 'executed'
    and (state = 'waiting' or (state = 'ambiguous' and provider_id = :provider_id)) and (
    about = :downstream_key or (about = '' and not exists (
        select 1 from {effects} as e where e.operation_id = :operation_id and e.kind = 'phase'
            and coalesce(e.outcome, '') not in ('executed', 'declined', 'not_executed')
    ))
)

-- name: mark_evidence
update {evidence} set state = :state
where source = :source and event_id = :event_id and operation_id = :operation_id and about = :about

-- name: stranded_evidence
-- Evidence that came while its operation was running, which it is no more; also what fits others as well.
select k.id from {keys} as k join (
    select operation_id, min(looked_at) as looked_at from {evidence}
    where state = 'waiting' or (state = 'ambiguous' and of_this_life = 0) group by operation_id
) as v on v.operation_id = k.id
where k.state in ('dead_letter', 'failed_retryable', 'completed')
    or exists (select 1 from {jobs} as j where j.operation_id = k.id and j.state = 'dead')
order by v.looked_at limit :batch

-- name: evidence_looked_at
update {evidence} set looked_at = {now}
where operation_id = :operation_id and state in ('waiting', 'ambiguous')

-- name: unused_evidence
-- What somebody must see to comes first; what waits for an operation that runs, as most early webhooks do, last.
select {event} from {evidence} where state in ('waiting', 'ambiguous', 'conflict')
order by case
    when state in ('ambiguous', 'conflict') then 0
    when exists (
        select 1 from {keys} as k
        where k.id = operation_id and k.state in ('unknown', 'dead_letter', 'failed_retryable')
    ) then 1 else 2
end, received_at, source, event_id limit :limit

-- name: shown_evidence
select {event} from {evidence}
where operation_id = :operation_id and state in ('waiting', 'ambiguous', 'conflict')
order by received_at, source, event_id

-- name: evidence_to_see_to
-- What nobody but a person can place: what fits several, what contradicts an answer, and what could not be used for
-- longer than a reconciler takes.
select state, count(*) from {evidence}
where state in ('ambiguous', 'conflict') or (
    state = 'waiting' and received_at <= {now} - 300000 and exists (
        select 1 from {keys} as k where k.id = operation_id and k.state in ('unknown', 'dead_letter')
    )
)
group by state order by state

-- name: ambiguous_event
-- The operations that an event fits. In one order, so that two who lock them do not wait for each other.
select operation_id from {evidence}
where source = :source and event_id = :event_id and state = 'ambiguous' order by operation_id

-- name: reap_effects
delete from {effects} where operation_id in (:ids)

-- name: bury_ids
-- Of operations of which only a tombstone stays, the provider's ids stay with it.
insert ignore into {made} (operation_id, step, attempt, tenant, source, downstream_key, provider_id)
select e.operation_id, e.step, 'past', e.tenant, e.source, e.downstream_key, coalesce(j.provider_id, e.provider_id)
from {effects} as e left join {jobs} as j on e.kind = 'job' and j.id = e.place
where e.operation_id in (:ids) and coalesce(j.provider_id, e.provider_id) is not null
