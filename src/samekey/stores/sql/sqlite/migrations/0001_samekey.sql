-- The keys. One row is one operation, the present life of its key; (scope, key) is its identity.
-- Times are milliseconds since 1970 by this machine's clock.
create table samekey_keys (
    scope               text not null,
    key                 text not null,
    id                  text not null,
    life                integer not null default 1,
    tenant              text not null,
    endpoint            text not null,
    fingerprint         blob not null,
    fingerprint_version text not null,
    state               text not null check (state in (
        'pending', 'in_progress', 'completed', 'failed_retryable', 'unknown', 'dead_letter', 'expired'
    )),
    mode                text not null check (mode in (
        'atomic', 'leased', 'repeatable', 'phased', 'deferred'
    )),
    attempt             text not null,
    attempts            integer not null,
    recovery_point      text,
    locked_until        integer,
    answer_version      integer,
    answer_status       integer,
    answer_headers      blob,
    answer_body         blob,
    error_code          text,
    downstream          text,
    provider_id         text,
    reconcile_after     integer,
    reconcile_tries     integer not null default 0,
    -- A provider says that it happened, and that word waits: such a key is never free.
    disputed            integer not null default 0,
    created_at          integer not null,
    last_run_at         integer not null,
    completed_at        integer,
    -- What decides its end, as it was declared when this life began: nobody infers it from differences of times,
    -- and no later setting changes it.
    ttl_ms              integer not null check (ttl_ms > 0),
    ttl_from            text not null check (ttl_from in ('completion', 'creation')),
    after_expiry        text not null check (after_expiry in ('new', 'ask', 'gone')),
    expires_at          integer not null,
    primary key (scope, key),
    check (disputed = 0 or state <> 'failed_retryable')
);

-- What domain tables reference (on delete set null) and what the status resource shows.
create unique index samekey_keys_id on samekey_keys (id);

-- The sweeper: leases that ran out.
create index samekey_keys_lease on samekey_keys (locked_until) where state = 'in_progress';
-- The reaper: settled records past retention, those to delete and those to bury, and tombstones whose own time is over.
create index samekey_keys_expiry on samekey_keys (expires_at)
    where state in ('completed', 'failed_retryable') and after_expiry = 'new';
create index samekey_keys_burial on samekey_keys (expires_at)
    where state in ('completed', 'failed_retryable') and after_expiry <> 'new';
create index samekey_keys_tombstones on samekey_keys (expires_at) where state = 'expired';
-- The reconciler: outcomes to find out.
create index samekey_keys_reconcile on samekey_keys (reconcile_after) where state = 'unknown';
-- The reaper: pending operations that nobody started.
create index samekey_keys_pending on samekey_keys (last_run_at) where state = 'pending';
-- The operators: the newest, and among the few of a state that somebody looks for, the newest.
create index samekey_keys_created on samekey_keys (created_at);
create index samekey_keys_state on samekey_keys (state, created_at) where state not in ('in_progress', 'completed');
-- A record by what the provider knows of it.
create index samekey_keys_downstream on samekey_keys (downstream) where downstream is not null;

-- The input of phased work, for the completer. Dropped when the operation completes.
create table samekey_inputs (
    operation_id text primary key,
    name         text not null,
    version      integer not null,
    payload      blob not null,
    created_at   integer not null
);

-- The recovery points. An effect is written before its call (done = 0) and again after it (done = 1).
create table samekey_phases (
    operation_id text not null,
    position     integer not null,
    name         text not null,
    kind         text not null,
    done         integer not null,
    result       blob,
    provider_id  text,
    intent_at    integer not null,
    done_at      integer,
    primary key (operation_id, position)
);

-- The outbox. A live job may be taken once due_at has come; taking it moves due_at by the lease. `attempts` is
-- a budget, which a stop or an operator gives back; `sends` is what was done.
create table samekey_jobs (
    id            text primary key,
    operation_id  text not null,
    scope         text not null,
    key           text not null,
    tenant        text not null,
    name          text not null,
    payload       blob not null,
    answers       integer not null,
    -- Whether its function takes what was found out: then it goes on with that, and calls nobody.
    goes_on       integer not null default 0,
    state         text not null check (state in (
        'live', 'done', 'dead', 'cancelled', 'discarded'
    )),
    attempt       text,
    attempts      integer not null,
    -- Whether this attempt has entered the job's function, and how often in a row its worker fell silent there.
    entered       integer not null default 0,
    silences      integer not null default 0,
    -- How often its function was entered in all, whoever has forgiven it an attempt; and when, the last time.
    sends         integer not null default 0,
    run_at        integer,
    due_at        integer not null,
    provider_id   text,
    error         text,
    created_at    integer not null,
    done_at       integer,
    -- Whether its operation is gone: then nothing else takes it away when it has ended.
    alone         integer not null default 0
);

create index samekey_jobs_due on samekey_jobs (name, due_at) where state = 'live';
create index samekey_jobs_provider on samekey_jobs (provider_id) where provider_id is not null;
create index samekey_jobs_operation on samekey_jobs (operation_id);
create index samekey_jobs_alone on samekey_jobs (done_at) where alone = 1;
create index samekey_jobs_dead on samekey_jobs (created_at) where state = 'dead';

-- What may have been sent out, one row for each effect of an operation: the leased call (step ''), or each step of it
-- that was named; a phase; a job, whose own row tells whether it was begun. `place` is a phase's position, a job's id
-- or the number of a leased handler's step. `sends` counts how often it was begun, `sent_at` is the last time.
create table samekey_effects (
    operation_id   text not null,
    step           text not null,
    kind           text not null check (kind in ('leased', 'phase', 'job')),
    place          text not null,
    attempt        text not null,
    tenant         text not null,
    source         text,
    downstream_key text,
    provider_id    text,
    sends          integer not null,
    sent_at        integer,
    outcome        text check (outcome in ('executed', 'declined', 'not_executed')),
    settled_at     integer,
    primary key (operation_id, step)
);

create index samekey_effects_provider on samekey_effects (provider_id, tenant) where provider_id is not null;

-- What a provider has made for former attempts at an effect, by its ids: one that another attempt takes the place of in
-- the effects table goes here, by a trigger, so that it still finds its operation and is not taken for the last one's.
create table samekey_made (
    operation_id   text not null,
    step           text not null,
    attempt        text not null,
    tenant         text not null,
    source         text,
    downstream_key text,
    provider_id    text not null,
    primary key (operation_id, step, attempt, provider_id)
);

create index samekey_made_provider on samekey_made (provider_id, tenant);

create trigger samekey_keep_made after update on samekey_effects when old.provider_id is not null and (old.attempt <> new.attempt or old.provider_id is not new.provider_id) begin insert into samekey_made (operation_id, step, attempt, tenant, source, downstream_key, provider_id) values (old.operation_id, old.step, old.attempt, old.tenant, old.source, old.downstream_key, old.provider_id) on conflict do nothing; end;

-- The same for a job, whose own row has the id of what its last run has made.
create trigger samekey_keep_job_made after update on samekey_jobs when old.provider_id is not null and old.provider_id is not new.provider_id begin insert into samekey_made (operation_id, step, attempt, tenant, source, downstream_key, provider_id) select e.operation_id, e.step, 'run ' || old.sends, e.tenant, e.source, e.downstream_key, old.provider_id from samekey_effects as e where e.operation_id = old.operation_id and e.kind = 'job' and e.place = old.id on conflict do nothing; end;

-- Events of providers, once each by their source and id for every effect that they are about: one event may tell of
-- several. What cannot be used yet waits here; what fits two operations is kept for an operator, without an operation.
create table samekey_evidence (
    source       text not null,
    event_id     text not null,
    operation_id text not null default '',
    about        text not null default '',
    provider_id  text,
    outcome      blob not null,
    says         text not null check (says in ('executed', 'declined', 'not_executed')),
    state        text not null constraint evidence_state check (state in (
        'waiting', 'used', 'late', 'ambiguous', 'conflict'
    )),
    occurred_at  integer not null,
    received_at  integer not null,
    looked_at    integer not null default 0,
    -- Whether it is known to be about this life of the key: by its operation's own id, or by its holder.
    of_this_life integer not null default 0,
    primary key (source, event_id, operation_id, about)
);

create index samekey_evidence_waiting on samekey_evidence (received_at) where state in ('waiting', 'ambiguous', 'conflict');
create index samekey_evidence_operation on samekey_evidence (operation_id);

-- New keys per tenant in the running minute. Written only where such a limit is set.
create table samekey_limits (
    tenant text primary key,
    minute integer not null,
    used   integer not null
);

-- Every transition of every key, append-only. It outlives the key.
create table samekey_audit (
    id           integer primary key,
    at           integer not null,
    operation_id text not null,
    scope        text not null,
    key          text not null,
    tenant       text not null,
    from_state   text,
    to_state     text,
    attempt      text,
    actor        text not null,
    reason       text
);

create index samekey_audit_key on samekey_audit (key, scope, id);
create index samekey_audit_operation on samekey_audit (operation_id);

-- Who acts in the transaction that is open; empty between transactions.
create table samekey_actor (actor text not null, reason text);

-- Triggers, so that nothing can change a state without leaving its trace. A client that repeats a request for ever does
-- not fill the table: what its retries repeat, tries that come to nothing, is written a hundred times for an operation, and
-- a hundred times a day for a key. How often it was tried in all stands in the record; every other transition is written.
create trigger samekey_note_new after insert on samekey_keys when not (new.state = 'in_progress' and not exists (select 1 from samekey_actor) and coalesce((select at from samekey_audit where scope = new.scope and key = new.key order by id desc limit 1 offset 99), 0) > cast((julianday('now') - 2440587.5) * 86400000 as integer) - 86400000) begin insert into samekey_audit (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason) values (cast((julianday('now') - 2440587.5) * 86400000 as integer), new.id, new.scope, new.key, new.tenant, null, new.state, new.attempt, coalesce((select actor from samekey_actor limit 1), 'request'), coalesce((select reason from samekey_actor limit 1), new.error_code)); end;

create trigger samekey_note_change after update of state, attempt on samekey_keys when (old.state is not new.state or old.attempt is not new.attempt) and not (new.state in ('in_progress', 'failed_retryable') and not exists (select 1 from samekey_actor) and exists (select 1 from samekey_audit where operation_id = new.id limit 1 offset 99)) begin insert into samekey_audit (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason) values (cast((julianday('now') - 2440587.5) * 86400000 as integer), new.id, new.scope, new.key, new.tenant, old.state, new.state, new.attempt, coalesce((select actor from samekey_actor limit 1), 'request'), coalesce((select reason from samekey_actor limit 1), new.error_code)); end;

create trigger samekey_note_end after delete on samekey_keys when not (old.state = 'in_progress' and not exists (select 1 from samekey_actor) and coalesce((select at from samekey_audit where scope = old.scope and key = old.key order by id desc limit 1 offset 99), 0) > cast((julianday('now') - 2440587.5) * 86400000 as integer) - 86400000) begin insert into samekey_audit (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason) values (cast((julianday('now') - 2440587.5) * 86400000 as integer), old.id, old.scope, old.key, old.tenant, old.state, null, old.attempt, coalesce((select actor from samekey_actor limit 1), 'request'), (select reason from samekey_actor limit 1)); end;

-- What belongs to an operation goes with it, whichever way that goes: reaped, released, or followed by another life of
-- its key. A job that is to run, or that an operator must see, stays.
create trigger samekey_forget_parts after delete on samekey_keys begin delete from samekey_inputs where operation_id = old.id; delete from samekey_phases where operation_id = old.id; delete from samekey_effects where operation_id = old.id; delete from samekey_made where operation_id = old.id; delete from samekey_evidence where operation_id = old.id; delete from samekey_jobs where operation_id = old.id and state in ('done', 'cancelled', 'discarded'); update samekey_jobs set alone = 1 where operation_id = old.id; end;

-- A later life of a key: the former one makes room. What the provider has made for it is known as a former life's, that
-- of nobody's attempt: it must not be taken for this one's.
create trigger samekey_next_life before insert on samekey_keys when new.life > 1 begin insert into samekey_made (operation_id, step, attempt, tenant, source, downstream_key, provider_id) select new.id, m.step, 'past', new.tenant, m.source, m.downstream_key, m.provider_id from samekey_keys as k join samekey_made as m on m.operation_id = k.id where k.scope = new.scope and k.key = new.key union select new.id, e.step, 'past', new.tenant, e.source, e.downstream_key, coalesce(j.provider_id, e.provider_id) from samekey_keys as k join samekey_effects as e on e.operation_id = k.id left join samekey_jobs as j on e.kind = 'job' and j.id = e.place where k.scope = new.scope and k.key = new.key and coalesce(j.provider_id, e.provider_id) is not null on conflict do nothing; delete from samekey_keys where scope = new.scope and key = new.key; end;
