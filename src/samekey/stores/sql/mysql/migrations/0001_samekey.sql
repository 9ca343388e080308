-- The keys. One row is one operation, the present life of its key; (scope, key) is its identity. Every statement of
-- a migration may be run again: DDL commits by itself, so a migration that is cut short begins anew.
-- Times are milliseconds since 1970 by this database's clock.
-- Text is kept as bytes (UTF-8): no collation makes two keys one, no connection's character set changes any.
create table if not exists samekey_keys (
    scope               varbinary(1536) not null,
    `key`               varbinary(1024) not null,
    id                  varbinary(128) not null,
    life                bigint not null default 1,
    tenant              varbinary(512) not null,
    endpoint            varbinary(1024) not null,
    fingerprint         tinyblob not null,
    fingerprint_version varbinary(255) not null,
    state               varbinary(32) not null,
    mode                varbinary(32) not null,
    attempt             varbinary(255) not null,
    attempts            bigint not null,
    recovery_point      varbinary(1024),
    locked_until        bigint,
    answer_version      bigint,
    answer_status       bigint,
    answer_headers      longblob,
    answer_body         longblob,
    error_code          varbinary(1024),
    downstream          varbinary(128),
    provider_id         varbinary(1024),
    reconcile_after     bigint,
    reconcile_tries     bigint not null default 0,
    -- A provider says that it happened, and that word waits: such a key is never free.
    disputed            bigint not null default 0,
    created_at          bigint not null,
    last_run_at         bigint not null,
    completed_at        bigint,
    -- What decides its end, as it was declared when this life began: nobody infers it from differences of times,
    -- and no later setting changes it.
    ttl_ms              bigint not null,
    ttl_from            varbinary(16) not null,
    after_expiry        varbinary(16) not null,
    expires_at          bigint not null,
    -- What the last change was signed with, for whoever made it to see that it did.
    mark                varbinary(16),
    primary key (scope, `key`),
    -- What domain tables reference (on delete set null) and what the status resource shows.
    unique key samekey_keys_id (id),
    -- The sweeper and the completer: set while somebody holds the lease, and null otherwise.
    key samekey_keys_lease (locked_until),
    -- The reaper, in its order; the few that must not be deleted are passed over.
    key samekey_keys_expiry (expires_at),
    -- The reaper's burials, among however many that are to be deleted.
    key samekey_keys_burial (after_expiry, expires_at),
    -- The reconciler: set while the outcome is unknown.
    key samekey_keys_reconcile (reconcile_after),
    -- Pending operations that nobody started, and what the machine gave up on.
    key samekey_keys_state (state, last_run_at),
    -- A record by what the provider knows of it.
    key samekey_keys_downstream (downstream),
    -- The operators: the newest.
    key samekey_keys_created (created_at),
    constraint samekey_keys_known_state check (state in (
        'pending', 'in_progress', 'completed', 'failed_retryable', 'unknown', 'dead_letter', 'expired'
    )),
    constraint samekey_keys_known_mode check (mode in (
        'atomic', 'leased', 'repeatable', 'phased', 'deferred'
    )),
    constraint samekey_keys_never_free check (disputed = 0 or state <> 'failed_retryable'),
    constraint samekey_keys_some_ttl check (ttl_ms > 0),
    constraint samekey_keys_ttl_from check (ttl_from in ('completion', 'creation')),
    constraint samekey_keys_after_expiry check (after_expiry in ('new', 'ask', 'gone'))
) engine = InnoDB row_format = dynamic;

-- The input of phased work, for the completer. Dropped when the operation completes.
create table if not exists samekey_inputs (
    operation_id varbinary(128) not null,
    name         varbinary(512) not null,
    version      bigint not null,
    payload      longblob not null,
    created_at   bigint not null,
    mark         varbinary(16),
    primary key (operation_id)
) engine = InnoDB row_format = dynamic;

-- The recovery points. An effect is written before its call (done = 0) and again after it (done = 1).
create table if not exists samekey_phases (
    operation_id varbinary(128) not null,
    position     bigint not null,
    name         varbinary(1024) not null,
    kind         varbinary(32) not null,
    done         bigint not null,
    result       longblob,
    provider_id  varbinary(1024),
    intent_at    bigint not null,
    done_at      bigint,
    mark         varbinary(16),
    primary key (operation_id, position)
) engine = InnoDB row_format = dynamic;

-- The outbox. A live job may be taken once due_at has come; taking it moves due_at by the lease. `attempts` is
-- a budget, which a stop or an operator gives back; `sends` is what was done.
create table if not exists samekey_jobs (
    id            varbinary(255) not null,
    operation_id  varbinary(128) not null,
    scope         varbinary(1536) not null,
    `key`         varbinary(1024) not null,
    tenant        varbinary(512) not null,
    name          varbinary(512) not null,
    payload       longblob not null,
    answers       bigint not null,
    -- Whether its function takes what was found out: then it goes on with that, and calls nobody.
    goes_on       bigint not null default 0,
    state         varbinary(32) not null,
    attempt       varbinary(512),
    attempts      bigint not null,
    -- Whether this attempt has entered the job's function, and how often in a row its worker fell silent there.
    entered       bigint not null default 0,
    silences      bigint not null default 0,
    -- How often its function was entered in all, whoever has forgiven it an attempt; and when, the last time.
    sends         bigint not null default 0,
    run_at        bigint,
    due_at        bigint not null,
    provider_id   varbinary(1024),
    error         longtext character set utf8mb4 collate utf8mb4_bin,
    created_at    bigint not null,
    done_at       bigint,
    -- Whether its operation is gone: then nothing else takes it away when it has ended.
    alone         bigint not null default 0,
    mark          varbinary(16),
    primary key (id),
    key samekey_jobs_alone (alone, done_at),
    key samekey_jobs_due (state, name, due_at),
    key samekey_jobs_operation (operation_id),
    key samekey_jobs_provider (provider_id),
    key samekey_jobs_dead (state, created_at),
    constraint samekey_jobs_known_state check (state in (
        'live', 'done', 'dead', 'cancelled', 'discarded'
    ))
) engine = InnoDB row_format = dynamic;

-- What may have been sent out, one row for each effect of an operation: the leased call (step ''), or each step of it
-- that was named; a phase; a job, whose own row tells whether it was begun. `place` is a phase's position, a job's id
-- or the number of a leased handler's step. `sends` counts how often it was begun, `sent_at` is the last time.
create table if not exists samekey_effects (
    operation_id   varbinary(128) not null,
    step           varbinary(1024) not null,
    kind           varbinary(16) not null,
    place          varbinary(255) not null,
    attempt        varbinary(512) not null,
    tenant         varbinary(512) not null,
    source         varbinary(1024),
    downstream_key varbinary(128),
    provider_id    varbinary(1024),
    sends          bigint not null,
    sent_at        bigint,
    outcome        varbinary(16),
    settled_at     bigint,
    mark           varbinary(16),
    primary key (operation_id, step),
    key samekey_effects_provider (provider_id, tenant),
    constraint samekey_effects_kind check (kind in ('leased', 'phase', 'job')),
    constraint samekey_effects_outcome check (outcome in ('executed', 'declined', 'not_executed'))
) engine = InnoDB row_format = dynamic;

-- What a provider has made for former attempts at an effect, by its ids: one that another attempt takes the place of in
-- the effects table goes here, by a trigger, so that it still finds its operation and is not taken for the last one's.
create table if not exists samekey_made (
    operation_id   varbinary(128) not null,
    step           varbinary(1024) not null,
    attempt        varbinary(512) not null,
    tenant         varbinary(512) not null,
    source         varbinary(1024),
    downstream_key varbinary(128),
    provider_id    varbinary(1024) not null,
    primary key (operation_id, step, attempt, provider_id),
    key samekey_made_provider (provider_id, tenant)
) engine = InnoDB row_format = dynamic;

create trigger if not exists samekey_keep_made after update on samekey_effects for each row begin if old.provider_id is not null and not (old.attempt <=> new.attempt and old.provider_id <=> new.provider_id) then insert ignore into samekey_made (operation_id, step, attempt, tenant, source, downstream_key, provider_id) values (old.operation_id, old.step, old.attempt, old.tenant, old.source, old.downstream_key, old.provider_id); end if; end;

-- The same for a job, whose own row has the id of what its last run has made.
create trigger if not exists samekey_keep_job_made after update on samekey_jobs for each row begin if old.provider_id is not null and not (old.provider_id <=> new.provider_id) then insert ignore into samekey_made (operation_id, step, attempt, tenant, source, downstream_key, provider_id) select e.operation_id, e.step, concat('run ', old.sends), e.tenant, e.source, e.downstream_key, old.provider_id from samekey_effects as e where e.operation_id = old.operation_id and e.kind = 'job' and e.place = old.id; end if; end;

-- Events of providers, once each by their source and id for every effect that they are about: one event may tell of
-- several. What cannot be used yet waits here; what fits two operations is kept for an operator, without an operation.
create table if not exists samekey_evidence (
    source       varbinary(1024) not null,
    event_id     varbinary(1024) not null,
    operation_id varbinary(128) not null default '',
    about        varbinary(128) not null default '',
    provider_id  varbinary(1024),
    outcome      longblob not null,
    says         varbinary(16) not null,
    state        varbinary(16) not null,
    occurred_at  bigint not null,
    received_at  bigint not null,
    looked_at    bigint not null default 0,
    -- Whether it is known to be about this life of the key: by its operation's own id, or by its holder.
    of_this_life bigint not null default 0,
    mark         varbinary(16),
    primary key (source, event_id, operation_id, about),
    key samekey_evidence_operation (operation_id),
    key samekey_evidence_waiting (state, received_at),
    constraint samekey_evidence_says check (says in ('executed', 'declined', 'not_executed')),
    constraint samekey_evidence_known_state check (state in ('waiting', 'used', 'late', 'ambiguous', 'conflict'))
) engine = InnoDB row_format = dynamic;

-- New keys per tenant in the running minute. Written only where such a limit is set.
create table if not exists samekey_limits (
    tenant varbinary(512) not null,
    minute bigint not null,
    used   bigint not null,
    primary key (tenant)
) engine = InnoDB row_format = dynamic;

-- Every transition of every key, append-only. It outlives the key.
create table if not exists samekey_audit (
    id           bigint not null auto_increment,
    at           bigint not null,
    operation_id varbinary(128) not null,
    scope        varbinary(1536) not null,
    `key`        varbinary(1024) not null,
    tenant       varbinary(512) not null,
    from_state   varbinary(32),
    to_state     varbinary(32),
    attempt      varbinary(255),
    actor        varbinary(1024) not null,
    reason       longtext character set utf8mb4 collate utf8mb4_bin,
    primary key (id),
    key samekey_audit_key (`key`, scope, id),
    key samekey_audit_operation (operation_id)
) engine = InnoDB row_format = dynamic;

-- Triggers, so that nothing can change a state without leaving its trace. A client that repeats a request for ever does
-- not fill the table: what its retries repeat, tries that come to nothing, is written a hundred times for an operation, and
-- a hundred times a day for a key. How often it was tried in all stands in the record; every other transition is written.
-- Who acts is a variable of the session
-- (operator.sql); without one it is a request.
create trigger if not exists samekey_note_new after insert on samekey_keys for each row begin if not (new.state = 'in_progress' and @samekey_actor is null and coalesce((select a.at from samekey_audit as a where a.scope = new.scope and a.`key` = new.`key` order by a.id desc limit 1 offset 99), 0) > timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000 - 86400000) then insert into samekey_audit (at, operation_id, scope, `key`, tenant, from_state, to_state, attempt, actor, reason) values (timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000, new.id, new.scope, new.`key`, new.tenant, null, new.state, new.attempt, coalesce(@samekey_actor, 'request'), coalesce(@samekey_reason, convert(new.error_code using utf8mb4))); end if; end;

create trigger if not exists samekey_note_change after update on samekey_keys for each row begin if not (old.state <=> new.state and old.attempt <=> new.attempt) and not (new.state in ('in_progress', 'failed_retryable') and @samekey_actor is null and exists (select 1 from samekey_audit as a where a.operation_id = new.id limit 1 offset 99)) then insert into samekey_audit (at, operation_id, scope, `key`, tenant, from_state, to_state, attempt, actor, reason) values (timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000, new.id, new.scope, new.`key`, new.tenant, old.state, new.state, new.attempt, coalesce(@samekey_actor, 'request'), coalesce(@samekey_reason, convert(new.error_code using utf8mb4))); end if; end;

create trigger if not exists samekey_note_end after delete on samekey_keys for each row begin if not (old.state = 'in_progress' and @samekey_actor is null and coalesce((select a.at from samekey_audit as a where a.scope = old.scope and a.`key` = old.`key` order by a.id desc limit 1 offset 99), 0) > timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000 - 86400000) then insert into samekey_audit (at, operation_id, scope, `key`, tenant, from_state, to_state, attempt, actor, reason) values (timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000, old.id, old.scope, old.`key`, old.tenant, old.state, null, old.attempt, coalesce(@samekey_actor, 'request'), @samekey_reason); end if; end;

-- What belongs to an operation goes with it, whichever way that goes: reaped, released, or followed by another life of
-- its key. A job that is to run, or that an operator must see, stays.
create trigger if not exists samekey_forget_parts after delete on samekey_keys for each row begin delete from samekey_inputs where operation_id = old.id; delete from samekey_phases where operation_id = old.id; delete from samekey_effects where operation_id = old.id; delete from samekey_made where operation_id = old.id; delete from samekey_evidence where operation_id = old.id; delete from samekey_jobs where operation_id = old.id and state in ('done', 'cancelled', 'discarded'); update samekey_jobs set alone = 1 where operation_id = old.id; end;
