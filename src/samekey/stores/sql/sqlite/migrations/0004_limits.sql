-- min_compatible: 1
-- New keys per tenant in the running minute. Written only where such a limit is set.
create table samekey_limits (
    tenant text primary key,
    minute integer not null,
    used   integer not null
);
