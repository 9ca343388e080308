-- Many statements of one kind in one round trip (drivers/wrappers/batched.py). Parameters are lists; each row begins
-- with the number, from 0, of the statement that it answers. Each list is a selection of its own: the planner then
-- cannot count it, finds a plan for any list as good as one for this list, and plans once for all batches.

-- name: find_many
-- The limit keeps the planner from anything but one look into the index for each key, whatever it believes
-- about the size of the table.
select wanted.n - 1, {now}, found.*
from unnest((select :scope::text[]), (select :key::text[])) with ordinality as wanted (scope, key, n)
left join lateral (
    select {record} from {keys} as k where k.scope = wanted.scope and k.key = wanted.key limit 1
) as found on true

-- name: reserve_many  event: claim
-- In the order of the keys: of two batches that want the same ones, one waits for the other at the first of
-- them, and neither holds what the other wants.
with wanted as (
    select * from unnest(
        (select :scope::text[]), (select :key::text[]), (select :id::text[]),
        (select :tenant::text[]), (select :endpoint::text[]), (select :fingerprint::bytea[]),
        (select :fingerprint_version::text[]), (select :mode::text[]), (select :attempt::text[]),
        (select :lease_ms::bigint[]), (select :ttl_ms::bigint[]), (select :ttl_from::text[]),
        (select :after_expiry::text[]), (select :downstream::text[])
    ) with ordinality as w (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, mode, attempt, lease_ms, ttl_ms,
        ttl_from, after_expiry, downstream, n
    )
), found as (
    select wanted.n, there.*
    from wanted
    cross join lateral (
        select {record} from {keys} as k where k.scope = wanted.scope and k.key = wanted.key limit 1
    ) as there
), mine as (
    insert into {keys} as k (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
        attempts, locked_until, downstream, life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, expires_at
    )
    select
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, {to:claim}, mode, attempt,
        1, {now} + lease_ms, downstream, 1, ttl_ms, ttl_from, after_expiry, {now}, {now}, {now} + ttl_ms
    from wanted
    where not exists (select from found where found.n = wanted.n) and {durable} and {in_time}
    order by scope, key
    on conflict (scope, key) do nothing
    returning {record}
)
select (select n from wanted where wanted.attempt = mine.attempt) - 1, {now}, 1::bigint, mine.* from mine
union all
select n - 1, {now}, 0::bigint, {record} from found
