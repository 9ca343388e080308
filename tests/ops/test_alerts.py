"""The rule file and the dashboard: well formed, and about metrics that are really exported.

``promtool`` judges the rules where it is installed; everywhere, a strict check of the format and the names.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from samekey.ops import ALERTS, DASHBOARD
from samekey.ops.metrics import INSTRUMENTS

DOCS = Path(__file__).parents[2] / "docs"

EXPORTED = {
    name
    for made in INSTRUMENTS
    for name in (
        [f"{made.prometheus}_{part}" for part in ("bucket", "sum", "count")]
        if made.kind == "histogram"
        else [made.prometheus]
    )
}
LABELS = {"job", "instance", "le"} | {label for made in INSTRUMENTS for label in made.attributes}
FUNCTIONS = {"rate", "increase", "histogram_quantile", "label_values"}
AGGREGATIONS = {"sum", "max", "topk"}
OPERATORS = {"and", "unless"}

TOKEN = re.compile(
    r"""\s+
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<range>\[(?:\d+[smhdwy]|\$__rate_interval)\])
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/<>=(){},])""",
    re.VERBOSE,
)


def tokens(expression: str) -> list[tuple[str, str]]:
    """All of it, or the expression has something in it that is not PromQL as we write it."""
    found, at = [], 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        assert match, f"not understood: {expression[at:][:30]!r} in {expression}"
        if match.lastgroup:
            found.append((match.lastgroup, match[0]))
        at = match.end()
    return found


def metrics_of(expression: str) -> set[str]:
    """The metrics that an expression names; everything else in it must be known too."""
    metrics: set[str] = set()
    depth: list[str] = []
    grouping = False
    found = tokens(expression)
    for number, (kind, text) in enumerate(found):
        following = found[number + 1][1] if number + 1 < len(found) else ""
        if text in "({":
            depth.append({"(": ")", "{": "}"}[text])
        elif text in ")}":
            assert depth and depth.pop() == text, f"unbalanced: {expression}"
            grouping = False
        elif kind == "range":
            assert found[number - 1][1] in EXPORTED | {"}"}, f"a range needs a metric before it: {expression}"
        elif kind == "name":
            if text == "by":
                assert following == "("
                grouping = True
            elif grouping or (depth and depth[-1] == "}"):
                assert text in LABELS, f"no metric has the label {text}: {expression}"
            elif following == "(" or (text in AGGREGATIONS and following == "by"):
                assert text in FUNCTIONS | AGGREGATIONS | OPERATORS, f"no function {text}: {expression}"
            elif text not in OPERATORS:
                metrics.add(text)
    assert not depth, f"unbalanced: {expression}"
    for rated in re.findall(r"(?:rate|increase)\((\w+)", expression):
        assert rated.endswith(("_total", "_bucket", "_count", "_sum")), f"no counter: {rated}"
    for gauge in re.findall(r"\b(\w+_total|\w+_bucket)\b(?!(?:\{[^}]*\})?\[)", expression):
        pytest.fail(f"a counter means nothing without rate or increase: {gauge}")
    return metrics


def rules() -> list[dict[str, Any]]:
    text = ALERTS.read_text("utf-8")
    assert "\t" not in text
    loaded = yaml.safe_load(text)
    assert loaded.keys() == {"groups"}
    assert all(group.keys() <= {"name", "interval", "rules"} for group in loaded["groups"])
    assert len({group["name"] for group in loaded["groups"]}) == len(loaded["groups"])
    return [rule for group in loaded["groups"] for rule in group["rules"]]


RULES = rules()
DURATION = re.compile(r"^(\d+d)?(\d+h)?(\d+m)?(\d+s)?$")
TEMPLATE = re.compile(r"\{\{\s*(.*?)\s*\}\}")
FILTERS = {"humanize", "humanizeDuration", "humanizePercentage"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, timeout=60)


def test_the_rules_have_different_names() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names)) >= 10


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_is_well_formed(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    assert re.fullmatch(r"Samekey[A-Z][A-Za-z]+", rule["alert"])
    assert isinstance(rule["expr"], str)
    if "for" in rule:
        assert isinstance(rule["for"], str) and rule["for"] and DURATION.fullmatch(rule["for"])
    for place in ("labels", "annotations"):
        for name, value in rule[place].items():
            assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
            assert isinstance(value, str), f"{place}.{name} must be text: quote it"
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert len(rule["annotations"]["summary"]) < 150
    assert len(rule["annotations"]["description"]) > 100, "say what to do"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_is_about_exported_metrics(rule: dict[str, Any]) -> None:
    named = metrics_of(rule["expr"])
    assert named
    assert named <= EXPORTED, named - EXPORTED
    comparisons = [text for kind, text in tokens(rule["expr"]) if text in {">", "<", "unless"}]
    assert comparisons, "without a threshold it would fire for ever"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_summary_uses_labels_that_are_there(rule: dict[str, Any]) -> None:
    groupings = re.findall(r"by \(([^)]*)\)", rule["expr"])
    there = set.intersection(*({label.strip() for label in grouping.split(",")} for grouping in groupings))
    for text in rule["annotations"].values():
        for template in TEMPLATE.findall(text):
            value, *filters = (part.strip() for part in template.split("|"))
            assert set(filters) <= FILTERS
            assert value == "$value" or value.removeprefix("$labels.") in there, template


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_threshold_has_its_reason(rule: dict[str, Any]) -> None:
    text = ALERTS.read_text("utf-8")
    after = text.split(f"- alert: {rule['alert']}\n")[1]
    assert after.lstrip().startswith("# "), "a comment that says why this threshold"
    assert f"`{rule['alert']}`" in (DOCS / "metrics.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("what", "metric"),
    [
        ("reservation failure rate", "api_idempotency_store_error_count_total"),
        ("breaker open", "api_idempotency_breaker_open"),
        ("dead-letter depth", "api_idempotency_dead_letter_depth"),
        ("oldest unknown", "api_idempotency_unknown_oldest_seconds"),
        ("zombie resets", "api_idempotency_zombie_key_count_total"),
        ("duplicate spikes", "api_idempotency_reserve_replay_count_total"),
        ("misuse spikes", "api_idempotency_reserve_key_misuse_count_total"),
        ("reconcile failures", "api_idempotency_reconcile_failed_count_total"),
        ("ledger differences", "api_idempotency_ledger_difference_count_total"),
    ],
)
def test_every_alert_of_o1_is_there(what: str, metric: str) -> None:
    assert any(metric in metrics_of(rule["expr"]) for rule in RULES), what


@pytest.mark.parametrize("metric", ["reserve_replay", "reserve_key_misuse"])
def test_spikes_are_looked_for_by_tenant(metric: str) -> None:
    assert any(
        f"by (job, tenant) (rate(api_idempotency_{metric}_count_total"
        in r["expr"].replace("increase", "rate")
        for r in RULES
    )


def test_reservations_that_fail_are_held_against_all() -> None:
    rule = next(rule for rule in RULES if rule["alert"] == "SamekeyReservationsFail")
    reserved = {name for name in EXPORTED if "_reserve_" in name}
    assert metrics_of(rule["expr"]) == reserved | {"api_idempotency_store_error_count_total"}


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rate(api_idempotency_no_such_total[5m])) > 1",
        "sum by (colour) (api_idempotency_breaker_open)",
        "sum(api_idempotency_breaker_open",
        "sum(rate(api_idempotency_breaker_open[5m]))",
        "sum(api_idempotency_zombie_key_count_total) > 3",
        "total(api_idempotency_breaker_open)",
        "api_idempotency_breaker_open ; 1",
        'api_idempotency_breaker_open{colour="red"}',
    ],
)
def test_this_test_would_notice(expression: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        assert metrics_of(expression) <= EXPORTED


# ------------------------------------------------------------------ the dashboard


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return loaded


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    assert board["title"] and board["schemaVersion"] >= 36
    assert board.get("id") is None, "the importing Grafana gives the id"
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == {"datasource", "job"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("timeseries", "stat")
        assert panel["title"] and panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}", "no data source of somebody else's"
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(references) == len(set(references))


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    shown = set().union(*(metrics_of(expression) for expression in expressions()))
    assert shown <= EXPORTED, shown - EXPORTED
    for made in INSTRUMENTS:
        assert any(name.startswith(made.prometheus) for name in shown), f"no panel for {made.name}"
    query = next(v for v in dashboard()["templating"]["list"] if v["name"] == "job")["query"]["query"]
    assert metrics_of(query.replace(", job", "")) <= EXPORTED


def test_every_expression_keeps_to_the_chosen_jobs() -> None:
    for expression in expressions():
        assert expression.count('{job=~"$job"}') == len(re.findall(r"\bapi_idempotency_\w+", expression))
