-- Limits per tenant on new keys; and whose keys these are.

-- name: count_new_key
-- One more new key in this minute; gives how many there are.
insert into {limits} as l (tenant, minute, used) values (:tenant::text, {now} / 60000, 1)
on conflict (tenant) do update set
    used = case when l.minute = excluded.minute then l.used + 1 else 1 end, minute = excluded.minute
returning used, {now}

-- name: keep_place
-- How many other keys a tenant has, counted no further than the limit; below it, this one has a place from now on.
select {schema}.keep_place(
    :tenant::text, :first_scope::text, :last_scope::text, :place::text, :limit::bigint, {now}, :held_ms::bigint
)

-- name: leave_place
delete from {limits} where tenant = :place::text

-- name: identity
select minute, used from {limits} where tenant = '!identity'

-- name: note_identity
-- Whoever comes first, unless the tables were used without one; no tenant has such a name.
insert into {limits} (tenant, minute, used)
select '!identity', :first::bigint, :second::bigint
where not exists (select from {keys}) and not exists (select from {audit})
on conflict (tenant) do nothing
