"""What is wrong is said when the application starts, in a sentence that says what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.servers.dynamodb import NamedServer
from samekey import Idempotency
from samekey.drivers.dynamodb.url import DynamoURL
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.engine.store import store_on
from samekey.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.dynamodb.table import DEFINITION, check, migrate
from tests.chosen import whole
from tests.dynamodb.subjects import plain_client
from tests.operator.command import samekey

pytestmark = whole


STATEMENTS = DynamoStatements()


def checked(url: str) -> list[str]:
    drivers = drivers_for(url)
    try:
        return run(drivers.sync, lambda: check(STATEMENTS))
    finally:
        drivers.sync.close()


def make(url: str, **changes: Any) -> None:
    """A table that somebody else has made."""
    client = plain_client(url)
    definition = {**DEFINITION, **changes}
    client.create_table(
        TableName=DynamoURL.parse(url).table,
        **{name: value for name, value in definition.items() if value is not None},
    )
    client.close()


# ------------------------------------------------------------------ the URL

WRONG = {
    "dynamodb://": "is not an AWS region",
    "dynamodb:///table": "is not an AWS region",
    "dynamodb://nowhere/table": "is not an AWS region",
    "dynamodb://eu-central-1": "cannot be the name of a DynamoDB table",
    "dynamodb://eu-central-1/a": "cannot be the name of a DynamoDB table",
    "dynamodb://eu-central-1/a/b/c": "cannot be the name of a DynamoDB table",
    "dynamodb://key:secret@eu-central-1/table": "Credentials do not belong in a DynamoDB URL",
    "dynamodb://eu-central-1/table?endpont=http://x": "no setting 'endpont'",
    "dynamodb://eu-central-1/table?endpoint=localhost": "is not a URL",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=WRONG[url]) as raised:
        Idempotency(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["dynamodb://eu-central-1/a.b-c_1", "dynamodb://us-gov-west-1/abc?endpoint=http://x:1"]
)
def test_a_url_is_what_it_was(url: str) -> None:
    assert str(DynamoURL.parse(url)) == url


# ------------------------------------------------------------------ the table


def test_a_missing_table_says_how_to_make_it(dynamodb_server: NamedServer) -> None:
    url = dynamodb_server.url()
    with pytest.raises(SchemaMismatch, match=r"The DynamoDB table is missing\. Run: samekey migrate URL"):
        checked(url)
    idempotency = Idempotency(url)
    with pytest.raises(SchemaMismatch):
        idempotency.check()
    with pytest.raises(SchemaMismatch, match="Run: samekey migrate 'dynamodb://"):
        run(idempotency.engine.drivers.sync, lambda: idempotency.engine.keys.read("scope", "key"))
    idempotency.close()


def test_a_table_of_somebody_elses_is_refused(dynamodb_server: NamedServer) -> None:
    url = dynamodb_server.url()
    attributes = [{"AttributeName": "user", "AttributeType": "N"}]
    key = [{"AttributeName": "user", "KeyType": "HASH"}]
    make(url, AttributeDefinitions=attributes, KeySchema=key, GlobalSecondaryIndexes=None)
    with pytest.raises(SchemaMismatch, match=r"has the key \(user N\) and not \(pk S\): it is not samekey's"):
        checked(url)
    drivers = drivers_for(url)
    with pytest.raises(SchemaMismatch):
        run(drivers.sync, lambda: migrate(STATEMENTS))
    drivers.sync.close()


def test_a_table_without_an_index_is_refused(dynamodb_server: NamedServer) -> None:
    url = dynamodb_server.url()
    due = DEFINITION["GlobalSecondaryIndexes"][0]
    make(url, GlobalSecondaryIndexes=[due], AttributeDefinitions=DEFINITION["AttributeDefinitions"][:3])
    with pytest.raises(SchemaMismatch, match=r"has no index by_provider on \(by_provider S\)"):
        checked(url)


def test_an_index_that_does_not_hold_what_it_must_is_refused(dynamodb_server: NamedServer) -> None:
    url = dynamodb_server.url()
    due, by_provider = DEFINITION["GlobalSecondaryIndexes"]
    held = {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["state", "mode", "created_at", "last_run_at"]}
    make(url, GlobalSecondaryIndexes=[{**due, "Projection": held}, by_provider])
    with pytest.raises(SchemaMismatch, match="has no endpoint in its index due"):
        checked(url)


def described(url: str, **changes: Any) -> list[str]:
    """What the check says of a table that DynamoDB describes like this one but for the changes."""
    drivers = drivers_for(url)
    driver: Any = drivers.sync
    as_it_is = driver._ask

    def ask(request: Any) -> Any:
        reply = as_it_is(request)
        return {**reply, "Table": {**reply["Table"], **changes}}

    driver._ask = ask
    try:
        return run(drivers.sync, lambda: check(STATEMENTS))
    finally:
        drivers.sync.close()


def test_a_table_that_is_still_being_made_is_not_ready(dynamodb_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="is not ready yet: status is CREATING"):
        described(dynamodb_url, TableStatus="CREATING")
    assert described(dynamodb_url, TableStatus="UPDATING") == []


def test_a_global_table_is_spoken_of(dynamodb_url: str) -> None:
    assert described(dynamodb_url) == []
    [sentence] = described(dynamodb_url, Replicas=[{"RegionName": "us-east-1"}])
    assert "the last writer wins" in sentence
    strong = {"Replicas": [{"RegionName": "us-east-1"}], "MultiRegionConsistency": "STRONG"}
    assert described(dynamodb_url, **strong) == []


def test_no_credentials_say_where_to_put_them(dynamodb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"no AWS credentials.*Give this process a role"):
        checked(dynamodb_url)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match="no AWS credentials"):
        checked(dynamodb_url)


# ------------------------------------------------------------------ samekey migrate


def test_migrate_makes_the_table(dynamodb_server: NamedServer) -> None:
    url = dynamodb_server.url()
    missing = samekey("migrate", url, "--check")
    assert missing.code == 1 and "Run: samekey migrate" in missing.sentence
    made = samekey("migrate", url)
    assert (made.code, made.out.splitlines()) == (
        0,
        [
            "created the table",
            "had DynamoDB delete what is long past retention",
            "The table is as it must be.",
        ],
    )
    again = samekey("migrate", url)
    assert (again.code, again.out) == (0, "The table is as it must be.\n")
    assert samekey("migrate", url, "--check").code == 0
    client, table = plain_client(url), DynamoURL.parse(url).table
    ttl = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "forget_after")
    billing = client.describe_table(TableName=table)["Table"]["BillingModeSummary"]["BillingMode"]
    assert billing == "PAY_PER_REQUEST"
    client.close()


def test_migrate_refuses_a_table_whose_items_are_deleted_by_something_else(
    dynamodb_server: NamedServer,
) -> None:
    url = dynamodb_server.url()
    make(url)
    client = plain_client(url)
    by_expiry = {"Enabled": True, "AttributeName": "expires_at"}
    client.update_time_to_live(TableName=DynamoURL.parse(url).table, TimeToLiveSpecification=by_expiry)
    client.close()
    refused = samekey("migrate", url)
    assert refused.code == 1 and "It must be 'forget_after'" in refused.sentence


def test_the_printed_definition_makes_the_same_table(dynamodb_server: NamedServer) -> None:
    url = dynamodb_server.url()
    printed = samekey("migrate", url, "--print-sql")
    client = plain_client(url)
    client.create_table(**json.loads(printed.out))
    client.close()
    assert checked(url) == []


def test_two_migrate_at_once(dynamodb_server: NamedServer) -> None:
    """The second finds a table that the first has just made."""
    url = dynamodb_server.url()
    drivers = drivers_for(url)
    first, second = migrate(STATEMENTS), migrate(STATEMENTS)
    for program in (first, second):
        statement = next(program)
        rows = drivers.sync.execute(statement)  # type: ignore[arg-type]
        statement = program.send(rows)
    drivers.sync.close()
    assert checked(url) == []


def test_the_store_keeps_keys_only(dynamodb_url: str) -> None:
    store = store_on(drivers_for(dynamodb_url))
    with pytest.raises(ConfigurationError, match="DynamoDB keeps keys only: there are no tables"):
        _ = store.tables
