-- min_compatible: 1
-- What operators need: who changed what and why, evidence from providers, and how often it was asked for.

alter table samekey_keys add column reconcile_tries integer not null default 0;

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

create index samekey_audit_key on samekey_audit (scope, key, id);
create index samekey_audit_operation on samekey_audit (operation_id);

-- The operators: what the machine gave up on.
create index samekey_keys_dead on samekey_keys (last_run_at) where state = 'dead_letter';

-- Events of providers, kept once each by their id; those that came too early wait here.
create table samekey_evidence (
    event_id     text primary key,
    operation_id text,
    outcome      blob not null,
    applied      integer not null,
    received_at  integer not null
);

create index samekey_evidence_operation on samekey_evidence (operation_id);

-- Who acts in the transaction that is open; empty between transactions.
create table samekey_actor (actor text not null, reason text);

-- Triggers, so that nothing can change a state without leaving its trace.
create trigger samekey_note_new after insert on samekey_keys begin insert into samekey_audit (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason) values (cast((julianday('now') - 2440587.5) * 86400000 as integer), new.id, new.scope, new.key, new.tenant, null, new.state, new.attempt, coalesce((select actor from samekey_actor limit 1), 'request'), coalesce((select reason from samekey_actor limit 1), new.error_code)); end;

create trigger samekey_note_change after update of state, attempt on samekey_keys when old.state is not new.state or old.attempt is not new.attempt begin insert into samekey_audit (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason) values (cast((julianday('now') - 2440587.5) * 86400000 as integer), new.id, new.scope, new.key, new.tenant, old.state, new.state, new.attempt, coalesce((select actor from samekey_actor limit 1), 'request'), coalesce((select reason from samekey_actor limit 1), new.error_code)); end;

create trigger samekey_note_end after delete on samekey_keys begin insert into samekey_audit (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason) values (cast((julianday('now') - 2440587.5) * 86400000 as integer), old.id, old.scope, old.key, old.tenant, old.state, null, old.attempt, coalesce((select actor from samekey_actor limit 1), 'request'), (select reason from samekey_actor limit 1)); end;
