"""``samekey keys``: found by id, key or digest; the key itself only on request; overrides only where due."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from samekey import Executed, Idempotency, OutcomeUnknown, Response, ResultUnavailable, ietf
from samekey.cli import resolve as module
from samekey.core.states import Mode, State
from samekey.workers.reaper import Reaper
from samekey.workers.sweeper import Sweeper
from tests.operator.command import Ran, samekey
from tests.operator.world import DAY, HOUR, MINUTE, TENANT, World

SECRET_KEY = "order-of-mrs-miller-17"


def keys(world: World, *arguments: str, env: dict[str, str] | None = None) -> Ran:
    return samekey("keys", *arguments, "--url", world.url, env=env)


def resolve(world: World, operation_id: str, *arguments: str) -> Ran:
    return keys(world, "resolve", operation_id, "--reason", "ticket 9", "--actor", "ann", *arguments)


# ------------------------------------------------------------------ list


def test_the_list_shows_digests_and_no_keys(world: World) -> None:
    record = world.unknown(SECRET_KEY, at=-3 * HOUR)
    ran = keys(world, "list")
    assert ran.code == 0
    [line] = [line for line in ran.out.splitlines() if record.id in line]
    digest = world.engine.engine.digest(TENANT, SECRET_KEY)
    for part in (digest, "unknown", "leased", "POST /payments", "3 h 0 min", "1", "OutcomeUnknown"):
        assert part in line
    assert SECRET_KEY not in ran.out
    assert SECRET_KEY in keys(world, "list", "--reveal").out


def test_filters(world: World) -> None:
    old = world.completed("a", at=-2 * DAY)
    young = world.completed("b", tenant="beta")
    lost = world.unknown("c")

    def ids(*arguments: str) -> list[str]:
        return [row["id"] for row in keys(world, "list", "--json", *arguments).json["records"]]

    assert set(ids()) == {old.id, young.id, lost.id}
    assert ids("--state", "unknown") == [lost.id]
    assert ids("--tenant", "beta") == [young.id]
    assert set(ids("--tenant", TENANT)) == {old.id, lost.id}
    assert ids("--key", "b") == [young.id]
    assert ids("--older-than", "24h") == [old.id]
    assert ids("--older-than", "3d") == []
    assert len(ids("--limit", "2")) == 2
    assert ids("--tenant", "nobody") == []


def test_a_short_list_says_that_there_is_more(world: World) -> None:
    for _ in range(3):
        world.completed()
    assert "there may be more" in keys(world, "list", "--limit", "2").out
    assert "there may be more" not in keys(world, "list").out


def test_an_empty_list_is_a_sentence(world: World) -> None:
    ran = keys(world, "list")
    assert (ran.code, ran.out) == (0, "There are no such records.\n")


@pytest.mark.parametrize("text", ["soon", "-3h", "3 weeks", ""])
def test_a_duration_that_is_none(lite: World, text: str) -> None:
    ran = keys(lite, "list", "--older-than", text)
    assert ran.code == 2 and "is no duration" in ran.err


def test_json_holds_no_key_unless_it_is_asked_for(world: World) -> None:
    world.completed(SECRET_KEY)
    [row] = keys(world, "list", "--json").json["records"]
    assert "key" not in row and SECRET_KEY not in str(row)
    assert (row["tenant"], row["state"]) == (TENANT, "completed")
    [row] = keys(world, "list", "--json", "--reveal").json["records"]
    assert row["key"] == SECRET_KEY


def test_text_of_a_user_cannot_play_tricks(lite: World) -> None:
    lite.unknown("k", endpoint="POST /[red]\x1b[2Jx")
    out = keys(lite, "list").out
    assert "[red]" in out and "\x1b" not in out


def test_ids_are_whole_also_where_the_line_is_long(lite: World) -> None:
    record = lite.unknown(endpoint="POST /" + "very-long/" * 18)
    assert record.id in keys(lite, "list").out
    assert record.id[:12] in keys(lite, "list", env={"COLUMNS": "60"}).out, "enough to name it"


# ------------------------------------------------------------------ show


def test_show_by_id_by_key_and_by_digest(world: World) -> None:
    record = world.unknown(SECRET_KEY)
    world.unknown("another")
    digest = world.engine.engine.digest(TENANT, SECRET_KEY)
    ways = [
        (record.id,),
        ("--key", SECRET_KEY, "--tenant", TENANT),
        ("--digest", digest),
        ("--digest", digest.upper()),
    ]
    for way in ways:
        ran = keys(world, "show", *way)
        assert ran.code == 0, ran.err
        assert record.id in ran.out and digest in ran.out
        assert SECRET_KEY not in ran.out
    assert SECRET_KEY in keys(world, "show", record.id, "--reveal").out


def test_the_digest_is_that_of_the_logs(world: World) -> None:
    other = Idempotency(world.url, digest_secret=b"ours")
    record = world.unknown(SECRET_KEY)
    digest = other.engine.digest(TENANT, SECRET_KEY)
    other.close()
    assert keys(world, "show", "--digest", digest).code == 1
    assert record.id in keys(world, "show", "--digest", digest, "--digest-secret", "ours").out


def test_a_key_in_a_wider_scope_is_found_too(world: World) -> None:
    wide = World(world.url, ietf(scope="tenant+endpoint"))
    wide.engine.once(tenant=TENANT, key="k", name="book", run=lambda: 1)
    ran = keys(world, "show", "--key", "k", "--tenant", TENANT)
    assert "CALL book" in ran.out
    wide.engine.once(tenant=TENANT, key="k", name="bill", run=lambda: 2)
    ran = keys(world, "show", "--key", "k", "--tenant", TENANT)
    assert ran.code == 1 and "several endpoints" in ran.sentence
    wide.close()


def test_a_clients_key_and_one_of_a_call_are_not_taken_for_each_other(world: World) -> None:
    world.engine.once(tenant=TENANT, key="k", name="book", run=lambda: 1)
    shown = keys(world, "show", "--key", "k", "--tenant", TENANT)
    assert "CALL book" in shown.out
    parts = keys(world, "show", "--key", "k", "--tenant", TENANT, "--json").json["record"]["fingerprint"]
    assert list(parts) == ["method", "path", "query", "media type", "headers", "body"]
    assert all(f"{name} {digest}" in " ".join(shown.out.split()) for name, digest in parts.items())
    world.completed("k")
    for way in (("--key", "k", "--tenant", TENANT), ("--digest", world.engine.engine.digest(TENANT, "k"))):
        ran = keys(world, "show", *way)
        assert ran.code == 1 and "use keys list, then the id" in ran.sentence


def test_show_tells_everything_but_the_body(world: World) -> None:
    record = world.completed(SECRET_KEY)
    out = keys(world, "show", record.id).out
    for part in ("completed", "201, 8 bytes", "POST /payments", "expires", "in_progress", "request"):
        assert part in out
    assert '{"id":7}' not in out
    assert '{"id":7}' in keys(world, "show", record.id, "--body").out
    described = keys(world, "show", record.id, "--json").json
    assert described["record"]["answer"] == {"status": 201, "bytes": 8}
    assert [step["to"] for step in described["timeline"]] == ["in_progress", "completed"]


def test_the_timeline_outlives_the_record(world: World) -> None:
    record = world.completed(SECRET_KEY, at=-3 * DAY)
    world.serve(Reaper(world.engine.engine).run_once)
    digest = world.engine.engine.digest(TENANT, SECRET_KEY)
    for way in ((record.id,), ("--key", SECRET_KEY, "--tenant", TENANT), ("--digest", digest)):
        ran = keys(world, "show", *way)
        assert ran.code == 0
        assert "The record is gone" in ran.out and "retention is over" in ran.out
        described = keys(world, "show", *way, "--json").json
        assert described["record"] is None
        assert described["timeline"][-1]["actor"] == "reaper"


def test_keys_from_before_the_audit_are_found_by_digest(world: World) -> None:
    world.completed(SECRET_KEY)
    world.sql("delete from {audit}")
    assert keys(world, "show", "--digest", world.engine.engine.digest(TENANT, SECRET_KEY)).code == 0


def test_what_is_not_known_at_all(world: World) -> None:
    for way in (("nothing",), ("--key", "k", "--tenant", "t"), ("--digest", "0" * 12)):
        ran = keys(world, "show", *way)
        assert (ran.code, ran.out) == (1, "")
        assert ran.sentence == "samekey: Nothing is known of it: no record, and no timeline."


@pytest.mark.parametrize(
    "way",
    [(), ("id", "--digest", "d"), ("--key", "k"), ("--tenant", "t"), ("id", "--key", "k", "--tenant", "t")],
)
def test_one_way_to_name_it(lite: World, way: tuple[str, ...]) -> None:
    ran = keys(lite, "show", *way)
    assert ran.code == 2 and "Usage" in ran.err


def test_jobs_and_early_events_are_shown(world: World) -> None:
    record, job = world.pending()
    assert job in keys(world, "show", record.id).out
    world.tell(Executed(Response(201)), "evt_5", operation_id=record.id)
    ran = keys(world, "show", record.id)
    assert "cards said executed of the operation" in ran.out
    assert keys(world, "show", record.id, "--json").json["events"][0]["id"] == "evt_5"


def test_what_to_do_next(world: World) -> None:
    assert "keys resolve" in keys(world, "show", world.unknown().id).out
    assert "keys resolve" in keys(world, "show", world.dead().id).out
    assert "dead retry" in keys(world, "show", world.dead_job()[0].id).out
    assert "samekey sweep" in keys(world, "show", world.claim(at=-HOUR).id).out
    assert "samekey" not in keys(world, "show", world.completed().id).out


# ------------------------------------------------------------------ resolve


def test_executed(world: World) -> None:
    record = world.unknown("k")
    ran = resolve(
        world, record.id, "--executed", "--status", "201", "--body", '{"id": 5}', "--provider-id", "ch_1"
    )
    assert (ran.code, ran.out) == (0, f"{record.id} was unknown and is completed now with 201, 9 bytes.\n")
    settled = world.read(record)
    assert settled.answer is not None
    assert settled.answer.header(b"content-type") == b"application/json"
    assert (settled.answer.body, settled.provider_id) == (b'{"id": 5}', "ch_1")
    assert world.story(record)[-1] == ("unknown", "completed", "ann")
    assert world.timeline(record)[-1].reason == "ticket 9"


def test_the_answer_is_what_a_retry_gets(world: World) -> None:
    def lost() -> None:
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        world.engine.once(tenant=TENANT, key="k", run=lost)
    refused = resolve(world, world.by_key("k").id, "--executed", "--status", "200", "--body", '"paid"')
    assert refused.code == 2 and "call of once()" in refused.err
    resolve(world, world.by_key("k").id, "--executed", "--result", '"paid"')
    assert world.engine.once(tenant=TENANT, key="k", run=lost) == "paid"


def test_declined_plain_and_empty(world: World) -> None:
    first, second = world.unknown(), world.dead()
    assert resolve(world, first.id, "--declined", "--status", "402", "--body", "no funds").code == 0
    assert resolve(world, second.id, "--declined", "--status", "410").code == 0
    answers = [world.read(record).answer for record in (first, second)]
    assert [(a and a.status, a and a.body) for a in answers] == [(402, b"no funds"), (410, b"")]


def test_not_executed(world: World) -> None:
    record = world.unknown("k")
    ran = resolve(world, record.id, "--not-executed")
    assert (ran.code, ran.out) == (0, f"{record.id} was unknown and is failed_retryable now.\n")
    assert world.claim("k").id == record.id


def test_a_dry_run_changes_nothing(world: World) -> None:
    record = world.unknown()
    ran = resolve(world, record.id, "--executed", "--status", "201", "--dry-run")
    assert ran.code == 0 and "would become completed with 201" in ran.out
    assert world.read(record) == record and len(world.timeline(record)) == 2


@pytest.mark.parametrize("state", [s for s in State if s not in (State.UNKNOWN, State.DEAD_LETTER)])
def test_anything_else_is_refused_with_a_sentence(world: World, state: State) -> None:
    record = {
        State.PENDING: lambda: world.pending()[0],
        State.IN_PROGRESS: world.claim,
        State.COMPLETED: world.completed,
        State.FAILED_RETRYABLE: world.failed,
        State.EXPIRED: world.completed,
    }[state]()
    if state is State.EXPIRED:
        world.sql("update {keys} set state = 'expired', expires_at = 1")
    ran = resolve(world, record.id, "--not-executed")
    assert (ran.code, ran.out) == (1, "")
    assert ran.sentence.startswith(
        f"samekey: It is {state}; only what is unknown or dead_letter can be resolved."
    )
    assert world.read(record).state is state


def test_what_is_free_to_run_again_may_have_happened_after_all(world: World) -> None:
    record = world.failed()
    ran = resolve(world, record.id, "--executed", "--status", "201", "--body", "{}")
    assert (ran.code, world.read(record).state) == (0, State.COMPLETED), ran.sentence


def test_a_lease_that_ended_is_swept_first(world: World) -> None:
    record = world.claim(at=-HOUR)
    ran = resolve(world, record.id, "--not-executed")
    assert ran.code == 1 and "samekey sweep" in ran.sentence
    world.serve(Sweeper(world.engine.engine).run_once)
    assert resolve(world, record.id, "--not-executed").code == 0


def test_deferred_work_with_a_dead_job(world: World) -> None:
    record, _ = world.dead_job()
    ran = resolve(world, record.id, "--not-executed")
    assert ran.code == 1 and f"samekey dead retry {record.id}" in ran.sentence
    assert resolve(world, record.id, "--executed", "--status", "200").code == 0


def test_an_unknown_id(world: World) -> None:
    ran = resolve(world, "nothing", "--not-executed")
    assert (ran.code, ran.sentence) == (1, "samekey: There is no operation nothing. Nothing was changed.")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--executed", "--declined", "--status", "201"),
        ("--executed",),
        ("--executed", "--status", "402"),
        ("--declined", "--status", "201"),
        ("--executed", "--status", "99"),
        ("--not-executed", "--status", "201"),
        ("--not-executed", "--body", "x"),
    ],
    ids=" ".join,
)
def test_orders_that_make_no_sense(lite: World, arguments: tuple[str, ...]) -> None:
    record = lite.unknown()
    ran = resolve(lite, record.id, *arguments)
    assert ran.code == 2 and "Traceback" not in ran.err
    assert lite.read(record).state == "unknown"


def test_a_reason_is_required_and_not_blank(lite: World) -> None:
    record = lite.unknown()
    assert keys(lite, "resolve", record.id, "--not-executed").code == 2
    assert keys(lite, "resolve", record.id, "--not-executed", "--reason", "  ").code == 2
    assert keys(lite, "evict", record.id).code == 2
    assert lite.read(record).state == "unknown"


def test_who_acts(lite: World) -> None:
    first, second, third = lite.unknown(), lite.unknown(), lite.unknown()
    order = ("--not-executed", "--reason", "r")
    keys(lite, "resolve", first.id, *order)
    keys(lite, "resolve", second.id, *order, env={"SAMEKEY_ACTOR": "on-call"})
    keys(lite, "resolve", third.id, *order, "--actor", "ann", env={"SAMEKEY_ACTOR": "on-call"})
    actors = [lite.story(record)[-1][2] for record in (first, second, third)]
    assert actors == [getpass.getuser(), "on-call", "ann"]


@pytest.mark.parametrize("name", ["reconciler", "webhook", "sweeper", "request", "reaper"])
def test_nobody_signs_as_a_machine(lite: World, name: str) -> None:
    record = lite.unknown()
    ran = keys(lite, "resolve", record.id, "--not-executed", "--reason", "r", "--actor", name)
    assert ran.code == 2 and lite.read(record).state == "unknown"


# ------------------------------------------------------------------ evict


def test_evict(world: World) -> None:
    record = world.completed(SECRET_KEY)
    ran = keys(world, "evict", record.id, "--reason", "erasure request", "--actor", "ann", "--dry-run")
    assert ran.code == 0 and world.read(record).answer is not None
    ran = keys(world, "evict", record.id, "--reason", "erasure request", "--actor", "ann")
    assert ran.code == 0
    evicted = world.read(record)
    assert (evicted.state, evicted.answer, evicted.withheld) == ("completed", None, True)
    assert world.timeline(record)[-1].reason == "erasure request"
    assert "not shown: " in keys(world, "show", record.id).out
    ran = keys(world, "evict", record.id, "--reason", "again")
    assert ran.code == 1 and "nothing to evict" in ran.sentence


def test_evict_only_what_has_an_answer(world: World) -> None:
    for record in (world.unknown(), world.claim(mode=Mode.REPEATABLE), world.failed()):
        ran = keys(world, "evict", record.id, "--reason", "r")
        assert ran.code == 1 and "nothing to evict" in ran.sentence
    assert keys(world, "evict", "nothing", "--reason", "r").code == 1


def test_a_retry_after_an_eviction_is_not_run(world: World) -> None:
    ran: list[int] = []
    world.engine.once(tenant=TENANT, key="k", run=lambda: ran.append(1))
    keys(world, "evict", world.by_key("k").id, "--reason", "r")
    with pytest.raises(ResultUnavailable):
        world.engine.once(tenant=TENANT, key="k", run=lambda: ran.append(1))
    assert ran == [1]


# ------------------------------------------------------------------ when it cannot be done


def test_a_store_that_is_not_there() -> None:
    ran = samekey("keys", "list", "--url", "postgresql://nobody@127.0.0.1:1/none", "--timeout", "1")
    assert ran.code == 2 and ran.sentence.startswith("samekey: PostgreSQL cannot be reached")


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    ran = samekey("keys", "list", "--url", f"sqlite:///{tmp_path}/typo.db")
    assert (ran.code, ran.sentence) == (2, f"samekey: There is no SQLite database {tmp_path}/typo.db.")
    assert not (tmp_path / "typo.db").exists()


def test_a_url_that_names_nothing() -> None:
    ran = samekey("keys", "list", "--url", "mongodb://x")
    assert ran.code == 2 and "does not know the store" in ran.sentence
    ran = samekey("keys", "list")
    assert ran.code == 2 and "--url" in ran.err


def test_tables_that_are_missing(postgres_url: str) -> None:
    ran = samekey("keys", "list", "--url", postgres_url)
    assert ran.code == 2 and "samekey migrate" in ran.sentence


def test_the_url_from_the_environment(lite: World) -> None:
    assert samekey("keys", "list", env={"SAMEKEY_URL": lite.url}).code == 0


def test_a_late_minute(world: World) -> None:
    """The record is settled by its holder between the look and the order: nothing is overwritten."""
    record = world.unknown()
    original = module._to_resolve

    def overtaken(*arguments: object, **options: object) -> object:
        found = original(*arguments, **options)  # type: ignore[arg-type]
        world.run(lambda: world.keys.complete(record.lease(MINUTE), None))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_to_resolve", overtaken)
        ran = resolve(world, record.id, "--not-executed")
    assert ran.code == 1 and "Somebody else was faster: it is completed now" in ran.sentence
