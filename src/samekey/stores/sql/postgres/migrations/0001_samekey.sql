-- The keys. One row is one operation, the present life of its key; (scope, key) is its identity and its shard key.
-- Times are milliseconds since 1970 by this database's clock.
create table {schema}.keys (
    scope               text collate "C" not null,
    key                 text collate "C" not null,
    id                  text collate "C" not null,
    life                bigint not null default 1,
    tenant              text not null,
    endpoint            text not null,
    fingerprint         bytea not null,
    fingerprint_version text not null,
    state               text not null constraint keys_state check (state in (
        'pending', 'in_progress', 'completed', 'failed_retryable', 'unknown', 'dead_letter', 'expired'
    )),
    mode                text not null constraint keys_mode check (mode in (
        'atomic', 'leased', 'repeatable', 'phased', 'deferred'
    )),
    attempt             text collate "C" not null,
    attempts            bigint not null,
    recovery_point      text,
    locked_until        bigint,
    answer_version      bigint,
    answer_status       bigint,
    answer_headers      bytea,
    answer_body         bytea,
    error_code          text,
    downstream          text collate "C",
    provider_id         text collate "C",
    reconcile_after     bigint,
    reconcile_tries     bigint not null default 0,
    -- A provider says that it happened, and that word waits: such a key is never free.
    disputed            bigint not null default 0,
    created_at          bigint not null,
    last_run_at         bigint not null,
    completed_at        bigint,
    -- What decides its end, as it was declared when this life began: nobody infers it from differences of times,
    -- and no later setting changes it.
    ttl_ms              bigint not null constraint keys_ttl check (ttl_ms > 0),
    ttl_from            text not null constraint keys_ttl_from check (ttl_from in ('completion', 'creation')),
    after_expiry        text not null constraint keys_after_expiry check (after_expiry in ('new', 'ask', 'gone')),
    expires_at          bigint not null,
    primary key (scope, key),
    constraint keys_never_free check (disputed = 0 or state <> 'failed_retryable')
);

-- What domain tables reference (on delete set null) and what the status resource shows.
create unique index keys_id on {schema}.keys (id);

-- The sweeper: leases that ran out.
create index keys_lease on {schema}.keys (locked_until) where state = 'in_progress';
-- The reaper: settled records past retention, those to delete and those to bury, and tombstones whose own time is over.
create index keys_expiry on {schema}.keys (expires_at)
    where state in ('completed', 'failed_retryable') and after_expiry = 'new';
create index keys_burial on {schema}.keys (expires_at)
    where state in ('completed', 'failed_retryable') and after_expiry <> 'new';
create index keys_tombstones on {schema}.keys (expires_at) where state = 'expired';
-- The reconciler: outcomes to find out.
create index keys_reconcile on {schema}.keys (reconcile_after) where state = 'unknown';
-- The reaper: pending operations that nobody started.
create index keys_pending on {schema}.keys (last_run_at) where state = 'pending';
-- The operators: the newest, and among the few of a state that somebody looks for, the newest.
create index keys_created on {schema}.keys (created_at);
create index keys_state on {schema}.keys (state, created_at) where state not in ('in_progress', 'completed');
-- A record by what the provider knows of it.
create index keys_downstream on {schema}.keys (downstream) where downstream is not null;

-- Every completion, lease and reaping leaves a dead row: vacuum comes after two in a hundred, not twenty.
alter table {schema}.keys set (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- The input of phased work, for the completer. Dropped when the operation completes.
create table {schema}.inputs (
    operation_id text collate "C" primary key,
    name         text not null,
    version      bigint not null,
    payload      bytea not null,
    created_at   bigint not null
);

-- The recovery points. An effect is written before its call (done = 0) and again after it (done = 1).
create table {schema}.phases (
    operation_id text collate "C" not null,
    position     bigint not null,
    name         text not null,
    kind         text not null,
    done         bigint not null,
    result       bytea,
    provider_id  text collate "C",
    intent_at    bigint not null,
    done_at      bigint,
    primary key (operation_id, position)
);

-- The outbox. A live job may be taken once due_at has come; taking it moves due_at by the lease. `attempts` is
-- a budget, which a stop or an operator gives back; `sends` is what was done.
create table {schema}.jobs (
    id            text collate "C" primary key,
    operation_id  text collate "C" not null,
    scope         text collate "C" not null,
    key           text collate "C" not null,
    tenant        text not null,
    name          text not null,
    payload       bytea not null,
    answers       bigint not null,
    -- Whether its function takes what was found out: then it goes on with that, and calls nobody.
    goes_on       bigint not null default 0,
    state         text not null constraint jobs_state check (state in (
        'live', 'done', 'dead', 'cancelled', 'discarded'
    )),
    attempt       text collate "C",
    attempts      bigint not null,
    -- Whether this attempt has entered the job's function, and how often in a row its worker fell silent there.
    entered       bigint not null default 0,
    silences      bigint not null default 0,
    -- How often its function was entered in all, whoever has forgiven it an attempt; and when, the last time.
    sends         bigint not null default 0,
    run_at        bigint,
    due_at        bigint not null,
    provider_id   text collate "C",
    error         text,
    created_at    bigint not null,
    done_at       bigint,
    -- Whether its operation is gone: then nothing else takes it away when it has ended.
    alone         bigint not null default 0
);

alter table {schema}.jobs set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

create index jobs_due on {schema}.jobs (name, due_at) where state = 'live';
create index jobs_provider on {schema}.jobs (provider_id) where provider_id is not null;
create index jobs_operation on {schema}.jobs (operation_id);
create index jobs_alone on {schema}.jobs (done_at) where alone = 1;
create index jobs_dead on {schema}.jobs (created_at) where state = 'dead';

-- What may have been sent out, one row for each effect of an operation: the leased call (step ''), or each step of it
-- that was named; a phase; a job, whose own row tells whether it was begun. `place` is a phase's position, a job's id
-- or the number of a leased handler's step. `sends` counts how often it was begun, `sent_at` is the last time.
create table {schema}.effects (
    operation_id   text collate "C" not null,
    step           text collate "C" not null,
    kind           text not null constraint effects_kind check (kind in ('leased', 'phase', 'job')),
    place          text collate "C" not null,
    attempt        text collate "C" not null,
    tenant         text collate "C" not null,
    source         text collate "C",
    downstream_key text collate "C",
    provider_id    text collate "C",
    sends          bigint not null,
    sent_at        bigint,
    outcome        text constraint effects_outcome check (outcome in ('executed', 'declined', 'not_executed')),
    settled_at     bigint,
    primary key (operation_id, step)
);

-- What changes here is in no index: with room on its page the new row needs no index entry (a HOT update).
alter table {schema}.effects set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

alter table {schema}.phases set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

create index effects_provider on {schema}.effects (provider_id, tenant) where provider_id is not null;

-- What a provider has made for former attempts at an effect, by its ids: one that another attempt takes the place of in
-- the effects table goes here, by a trigger, so that it still finds its operation and is not taken for the last one's.
create table {schema}.made (
    operation_id   text collate "C" not null,
    step           text collate "C" not null,
    attempt        text collate "C" not null,
    tenant         text collate "C" not null,
    source         text collate "C",
    downstream_key text collate "C",
    provider_id    text collate "C" not null,
    primary key (operation_id, step, attempt, provider_id)
);

create index made_provider on {schema}.made (provider_id, tenant);

create function {schema}.keep_made() returns trigger language plpgsql as $$ begin insert into {schema}.made (operation_id, step, attempt, tenant, source, downstream_key, provider_id) values (old.operation_id, old.step, old.attempt, old.tenant, old.source, old.downstream_key, old.provider_id) on conflict do nothing; return null; end $$;

create trigger keep_made after update on {schema}.effects for each row
    when (old.provider_id is not null and (old.attempt <> new.attempt or old.provider_id is distinct from new.provider_id))
    execute function {schema}.keep_made();

-- The same for a job, whose own row has the id of what its last run has made.
create function {schema}.keep_job_made() returns trigger language plpgsql as $$ begin insert into {schema}.made (operation_id, step, attempt, tenant, source, downstream_key, provider_id) select e.operation_id, e.step, 'run ' || old.sends, e.tenant, e.source, e.downstream_key, old.provider_id from {schema}.effects as e where e.operation_id = old.operation_id and e.kind = 'job' and e.place = old.id on conflict do nothing; return null; end $$;

create trigger keep_job_made after update on {schema}.jobs for each row
    when (old.provider_id is not null and old.provider_id is distinct from new.provider_id)
    execute function {schema}.keep_job_made();

-- Events of providers, once each by their source and id for every effect that they are about: one event may tell of
-- several. What cannot be used yet waits here; what fits two operations is kept for an operator, without an operation.
create table {schema}.evidence (
    source       text collate "C" not null,
    event_id     text collate "C" not null,
    operation_id text collate "C" not null default '',
    about        text collate "C" not null default '',
    provider_id  text collate "C",
    outcome      bytea not null,
    says         text not null constraint evidence_says check (says in ('executed', 'declined', 'not_executed')),
    state        text not null constraint evidence_state check (state in (
        'waiting', 'used', 'late', 'ambiguous', 'conflict'
    )),
    occurred_at  bigint not null,
    received_at  bigint not null,
    looked_at    bigint not null default 0,
    -- Whether it is known to be about this life of the key: by its operation's own id, or by its holder.
    of_this_life bigint not null default 0,
    primary key (source, event_id, operation_id, about)
);

create index evidence_waiting on {schema}.evidence (received_at) where state in ('waiting', 'ambiguous', 'conflict');
create index evidence_operation on {schema}.evidence (operation_id);

-- New keys per tenant in the running minute, and places: keys that are about to appear, by scope and key, with the last
-- minute in which they count. Written only where such a limit is set.
create table {schema}.limits (
    tenant text collate "C" primary key,
    minute bigint not null,
    used   bigint not null
);

alter table {schema}.limits set (fillfactor = 50);

-- Counts a tenant's keys and places, each once, one caller after the other; below the limit it keeps a place for one more.
-- A function, because each of its statements sees what was committed before it: one statement would count what was there
-- before it waited for its turn. A key that is there needs no place.
create function {schema}.keep_place(owner text, first_scope text, last_scope text, place text, most bigint, at bigint, held_ms bigint) returns bigint language plpgsql as $$ declare counted bigint; begin insert into {schema}.limits as l (tenant, minute, used) values (owner, 0, 0) on conflict (tenant) do update set used = l.used; delete from {schema}.limits as l where l.tenant >= first_scope and l.tenant < last_scope and l.minute < at / 60000; if exists (select from {schema}.keys as k where k.scope = split_part(place, chr(10), 1) and k.key = split_part(place, chr(10), 2)) then return 0; end if; select count(*) into counted from ((select k.scope || chr(10) || k.key as name from {schema}.keys as k where k.scope >= first_scope and k.scope < last_scope limit most) union select l.tenant from {schema}.limits as l where l.tenant >= first_scope and l.tenant < last_scope and l.tenant <> place) as them; if counted < most then insert into {schema}.limits (tenant, minute, used) values (place, (at + held_ms) / 60000 + 1, 0) on conflict (tenant) do update set minute = greatest({schema}.limits.minute, excluded.minute); end if; return counted; end $$;

-- Every transition of every key, append-only. It outlives the key.
create table {schema}.audit (
    id           bigint generated always as identity primary key,
    at           bigint not null,
    operation_id text collate "C" not null,
    scope        text collate "C" not null,
    key          text collate "C" not null,
    tenant       text not null,
    from_state   text,
    to_state     text,
    attempt      text collate "C",
    actor        text not null,
    reason       text
);

create index audit_key on {schema}.audit (key, scope, id);
create index audit_operation on {schema}.audit (operation_id);

-- A trigger, so that nothing can change a state without leaving its trace. A client that repeats a request for ever does
-- not fill the table: what its retries repeat, tries that come to nothing, is written a hundred times for an operation, and
-- a hundred times a day for a key. How often it was tried in all stands in the record; every other transition is written.
create function {schema}.note_transition() returns trigger language plpgsql as $$ declare r {schema}.keys; begin if tg_op = 'DELETE' then r := old; else r := new; end if; if coalesce(current_setting('samekey.actor', true), '') = '' then if tg_op = 'UPDATE' then if new.state in ('in_progress', 'failed_retryable') and exists (select from {schema}.audit as a where a.operation_id = r.id offset 99) then return null; end if; elsif r.state = 'in_progress' and (select a.at from {schema}.audit as a where a.scope = r.scope and a.key = r.key order by a.id desc offset 99 limit 1) > (extract(epoch from clock_timestamp()) * 1000)::bigint - 86400000 then return null; end if; end if; insert into {schema}.audit (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason) values ((extract(epoch from clock_timestamp()) * 1000)::bigint, r.id, r.scope, r.key, r.tenant, case when tg_op <> 'INSERT' then old.state end, case when tg_op <> 'DELETE' then new.state end, r.attempt, coalesce(nullif(current_setting('samekey.actor', true), ''), 'request'), coalesce(nullif(current_setting('samekey.reason', true), ''), case when tg_op <> 'DELETE' then new.error_code end)); return null; end $$;

create trigger note_new after insert or delete on {schema}.keys for each row execute function {schema}.note_transition();

create trigger note_change after update of state, attempt on {schema}.keys for each row
    when (old.state is distinct from new.state or old.attempt is distinct from new.attempt)
    execute function {schema}.note_transition();

-- What belongs to an operation goes with it, whichever way that goes: reaped, released, or followed by another life of
-- its key. A job that is to run, or that an operator must see, stays. (The arrays keep the plans on the indexes. A statement that could delete, and did
-- not, is the ordinary one.)
create function {schema}.forget_parts() returns trigger language plpgsql as $$ begin if not exists (select from gone) then return null; end if; delete from {schema}.inputs where operation_id = any(array(select id from gone)); delete from {schema}.phases where operation_id = any(array(select id from gone)); delete from {schema}.effects where operation_id = any(array(select id from gone)); delete from {schema}.made where operation_id = any(array(select id from gone)); delete from {schema}.evidence where operation_id = any(array(select id from gone)); delete from {schema}.jobs where operation_id = any(array(select id from gone)) and state in ('done', 'cancelled', 'discarded'); update {schema}.jobs set alone = 1 where operation_id = any(array(select id from gone)); return null; end $$;

create trigger forget_parts after delete on {schema}.keys referencing old table as gone for each statement
    execute function {schema}.forget_parts();
