-- min_compatible: 1
-- What operators need: who changed what and why, evidence from providers, and how often it was asked for.

alter table {schema}.keys add column reconcile_tries bigint not null default 0;

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

create index audit_key on {schema}.audit (scope, key, id);
create index audit_operation on {schema}.audit (operation_id);

-- The operators: what the machine gave up on.
create index keys_dead on {schema}.keys (last_run_at) where state = 'dead_letter';

-- Events of providers, kept once each by their id; those that came too early wait here.
create table {schema}.evidence (
    event_id     text collate "C" primary key,
    operation_id text collate "C",
    outcome      bytea not null,
    applied      bigint not null,
    received_at  bigint not null
);

create index evidence_operation on {schema}.evidence (operation_id);

-- A trigger, so that nothing can change a state without leaving its trace.
create function {schema}.note_transition() returns trigger language plpgsql as $$ declare r {schema}.keys; begin if tg_op = 'DELETE' then r := old; else r := new; end if; insert into {schema}.audit (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason) values ((extract(epoch from clock_timestamp()) * 1000)::bigint, r.id, r.scope, r.key, r.tenant, case when tg_op <> 'INSERT' then old.state end, case when tg_op <> 'DELETE' then new.state end, r.attempt, coalesce(nullif(current_setting('samekey.actor', true), ''), 'request'), coalesce(nullif(current_setting('samekey.reason', true), ''), case when tg_op <> 'DELETE' then new.error_code end)); return null; end $$;

create trigger note_new after insert or delete on {schema}.keys for each row execute function {schema}.note_transition();

create trigger note_change after update of state, attempt on {schema}.keys for each row
    when (old.state is distinct from new.state or old.attempt is distinct from new.attempt)
    execute function {schema}.note_transition();
