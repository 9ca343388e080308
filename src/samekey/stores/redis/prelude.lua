-- What every script begins with: its parameters, the clock, and how a record is read, changed and given back.
--
-- A record is a hash whose fields are the columns that have a value. It is a member of one of four sorted sets of
-- its partition, by what is to happen to it next, so that nobody has to search:
--
--   leases    in progress, by the end of the lease
--   unknown   to be found out, by the next date to ask
--   settled   to be forgotten, by the end of retention
--   dead      waiting for a person, by the last run
--
-- One that is disputed (by providers' events, which say that it happened) is never free to run again.
--
-- Only what is settled has a time to live: what is in flight or unknown is never forgotten, nor is a key after whose
-- expiry comes "gone". All names begin with
-- KEYS[1] less its last word, so with the same hash tag: they lie in one slot, and a script is one atomic step.

local home = string.sub(KEYS[1], 1, -#'leases' - 1)
local indexes = {leases = KEYS[1], unknown = KEYS[2], dead = KEYS[3], settled = KEYS[4]}
local FIRST_RECORD = 5

-- How long a settled record stays after its retention, if no reaper comes: its key is still seen to have been used.
local MARGIN = 24 * 3600 * 1000
-- The same where somebody is to be asked before the key runs again: as long as a reaper would keep its tombstone.
local KEPT = 30 * MARGIN
-- Ids of the provider's that a record keeps: the latest, should it be tried again for ever.
local MOST_MADE = 1000
-- Events that a record keeps that dispute it, and what stands for all others.
local MOST_DISPUTES = {table:most_disputes}
local MORE_DISPUTES = {table:more_disputes}
-- Index entries of records that have gone by themselves: so many are removed with each new one.
local TRIMMED = 16

local function argument(position)
    local given = ARGV[position]
    local kind, value = string.sub(given, 1, 1), string.sub(given, 2)
    if kind == '' then
        return nil
    elseif kind == 'i' then
        return tonumber(value)
    elseif kind == 'j' then
        return cjson.decode(value)
    end
    return value
end

local p = {table:parameters}

local clock = p.now
if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Numbers are written out: Lua would make 1.8e+12 of a time.
local function text(value)
    if type(value) == 'number' then
        return string.format('%.0f', value)
    end
    return value
end

local function number(value)
    return tonumber(value) or 0
end

local function base_of(name)
    return string.sub(name, #home + 1)
end

local function load(name)
    local flat = redis.call('HGETALL', name)
    if #flat == 0 then
        return nil
    end
    local record = {}
    for i = 1, #flat, 2 do
        record[flat[i]] = flat[i + 1]
    end
    return record
end

-- The records of a tenant that have noted this id of the provider's: a set, for there may be two.
local function pointer(tenant, provider_id)
    return home .. 'provider:' .. redis.sha1hex(#tenant .. ':' .. tenant .. provider_id)
end

-- What the provider has made for this operation, in all its attempts: its id, the attempt, step, downstream key, source.
local function made_by(record)
    return record.made and cjson.decode(record.made) or {}
end

-- The provider's ids that former lives of the key have noted.
local function past_of(record)
    return record.past and cjson.decode(record.past) or {}
end

-- The sets of all the provider's ids that a record is found by.
local function pointers(record)
    local found = {}
    if record.provider_id then
        found[pointer(record.tenant, record.provider_id)] = true
    end
    for _, one in ipairs(made_by(record)) do
        found[pointer(record.tenant, one[1])] = true
    end
    return found
end

local function index_of(record)
    if {from:lease_end}[record.state] then
        return 'leases', record.locked_until
    elseif record.state == {state:unknown} then
        return 'unknown', record.reconcile_after
    elseif {from:reap}[record.state] then
        return 'settled', record.expires_at
    end
    return 'dead', record.last_run_at
end

-- The index entries of records that are gone have outlived retention and margin. A few at a time: no script may
-- hold the server up.
local function trim()
    local gone = redis.call(
        'ZRANGE', indexes.settled, '-inf', text(clock - 2 * MARGIN), 'BYSCORE', 'LIMIT', 0, TRIMMED)
    for _, base in ipairs(gone) do
        if redis.call('EXISTS', home .. base) == 0 then
            redis.call('ZREM', indexes.settled, base)
        end
    end
end

-- When a record that has its answer now ends: by its own ttl. Counted from creation that may be over already, and
-- a retry must still find it.
local function expiry(record)
    local ttl = number(record.ttl_ms)
    if record.ttl_from == 'creation' then
        return math.max(number(record.created_at) + ttl, clock + math.min(ttl, {table:heard}))
    end
    return clock + ttl
end

-- Its retention is over, and what follows is not "gone".
local function over(record)
    local ended = {from:expire}[record.state] and number(record.expires_at) <= clock
    return record.after_expiry ~= 'gone' and (ended or {from:claim}[record.state])
end

-- Where a record belongs now, and for how long it is kept.
local function place(name, record)
    local where, score = index_of(record)
    local base = base_of(name)
    for index, set in pairs(indexes) do
        if index == where then
            redis.call('ZADD', set, text(number(score)), base)
        else
            redis.call('ZREM', set, base)
        end
    end
    local noted = pointers(record)
    for set in pairs(noted) do
        redis.call('SADD', set, base)
        redis.call('PERSIST', set)
    end
    if where == 'settled' and record.after_expiry ~= 'gone' then
        -- Counted from now, not a date: a test's clock is not the server's.
        local kept = record.after_expiry == 'ask' and KEPT or MARGIN
        local life = text(math.max(number(record.expires_at) - clock, 0) + kept)
        redis.call('PEXPIRE', name, life)
        for set in pairs(noted) do
            if redis.call('SCARD', set) == 1 then
                redis.call('PEXPIRE', set, life)
            end
        end
        trim()
    else
        redis.call('PERSIST', name)
    end
end

-- Writes columns into a record; false empties one.
local function change(name, record, columns)
    local written, emptied = {}, {}
    for column, value in pairs(columns) do
        if value == false then
            emptied[#emptied + 1] = column
            record[column] = nil
        else
            written[#written + 1] = column
            written[#written + 1] = text(value)
            record[column] = text(value)
        end
    end
    if #written > 0 then
        redis.call('HSET', name, unpack(written))
    end
    if #emptied > 0 then
        redis.call('HDEL', name, unpack(emptied))
    end
    place(name, record)
end

local function remove(name, record)
    local base = base_of(name)
    for _, set in pairs(indexes) do
        redis.call('ZREM', set, base)
    end
    for set in pairs(pointers(record)) do
        redis.call('SREM', set, base)
    end
    redis.call('DEL', name)
end

-- The record of this statement's scope and key. Names are digests: that it is the same key is looked at, too.
local function mine()
    local record = load(KEYS[FIRST_RECORD])
    if record and p.key and (record.scope ~= p.scope or record.key ~= p.key) then
        error('the record under this digest is that of another key')
    end
    return record
end

-- The record, if this attempt is still the current one and its state is one of those.
local function held(attempt, states)
    local record = mine()
    if record and record.attempt == attempt and states[record.state] then
        return record
    end
    return nil
end

-- The record of this operation id, if its state is one of those and, where an attempt is named, that is current.
local function operation(states)
    local record = load(KEYS[FIRST_RECORD])
    if record and record.id == p.operation_id and states[record.state]
        and (not p.attempt or record.attempt == p.attempt) then
        return record
    end
    return nil
end

-- The id that an attempt has once somebody else than its holder has moved the record: it is nobody's any more.
local function nobodys(record)
    return record.attempt .. '-'
end

-- The id that it has once its holder has noted something: of an outcome that others may be asking about by now, that
-- is news to them.
local function noted_by(record)
    return record.state == {state:in_progress} and record.attempt or nobodys(record)
end

-- The run that an attempt id, as its holder had it or as others have left it, stands for.
local function run_of(attempt)
    return attempt and string.gsub(attempt, '-+$', '') or nil
end

-- What the provider has made, with what it made for this attempt: once, however often that is told.
local function made_with(record, attempt)
    local made, known = made_by(record), {}
    for _, one in ipairs(made) do
        known[cjson.encode(one)] = true
    end
    for _, one in ipairs(cjson.decode(p.made_list)) do
        local new = {one[1], attempt, one[2], one[3], one[4]}
        if not known[cjson.encode(new)] then
            made[#made + 1] = new
        end
    end
    while #made > MOST_MADE do
        table.remove(made, 1)
    end
    return cjson.encode(made)
end

local function holds(list, wanted)
    for _, one in ipairs(list) do
        if one == wanted then
            return true
        end
    end
    return false
end

-- The events that dispute it, with this one. Of those for which there is no room it is kept that there were some.
local function with_dispute(record, event)
    local events = record.disputed and cjson.decode(record.disputed) or {}
    if #events >= MOST_DISPUTES then
        event = MORE_DISPUTES
    end
    if not holds(events, event) then
        events[#events + 1] = event
    end
    return cjson.encode(events)
end

-- Whether every event that disputes it is among those that somebody sets aside.
local function set_aside(record, despite)
    local named = despite and cjson.decode(despite) or {}
    for _, event in ipairs(record.disputed and cjson.decode(record.disputed) or {}) do
        if not holds(named, event) then
            return false
        end
    end
    return true
end

-- What a leased handler may have sent, as it is noted with the outcome of its attempt.
local function noted_with(record, columns)
    if p.made_list then
        columns.made = made_with(record, record.attempt)
    end
    if p.step_list then
        columns.steps = p.step_list
        columns.sent_attempt = record.attempt
        columns.source = p.source or false
    end
    return columns
end

local numbers = {table:numbers}
local binary = {table:binary}

-- A value as it goes over the wire: numbers as they are, text and bytes told apart by a letter in front.
local function value_of(record, column)
    local value = record[column]
    if value == nil then
        return false
    elseif numbers[column] and tonumber(value) then
        return tonumber(value)
    elseif binary[column] then
        return 'b' .. value
    end
    return 't' .. value
end

-- A row: these values, then the columns of the record in their order.
local function row(first, record)
    local values = {}
    for i, value in ipairs(first) do
        values[i] = value
    end
    for _, column in ipairs({table:columns}) do
        values[#values + 1] = value_of(record or {}, column)
    end
    return values
end
