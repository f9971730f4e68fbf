"""The alert rules fire when they should; promtool, where it is, runs their own tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from promtool import needs_promtool, run_promtool
from strata.shared.stop_reasons import StopReason
from unit.k8s.custom_resources import PROMETHEUS_RULE_SCHEMA
from unit.k8s.manifests import ALERTS, MONITORING, load, objects_in

RULES = MONITORING / "alerts.yaml"
TESTS = MONITORING / "alerts.test.yaml"
(GROUPS,) = objects_in(RULES)
ALERT_RULES = {rule["alert"]: rule for group in GROUPS["groups"] for rule in group["rules"]}


def expectations() -> Iterator[tuple[str, bool]]:
    """Yields the alert of each test, and whether it must fire."""
    (tests,) = objects_in(TESTS)
    for test in tests["tests"]:
        for expected in test["alert_rule_test"]:
            yield expected["alertname"], bool(expected["exp_alerts"])


def test_each_alert_is_tested_to_fire_and_to_stay_silent() -> None:
    assert set(expectations()) == {(name, fires) for name in ALERT_RULES for fires in (True, False)}


def test_rules_select_existing_label_values() -> None:
    selected = re.findall(r'stop_reason=~"([^"]+)"', ALERT_RULES["StrataRunsFail"]["expr"])
    reasons = {reason for values in selected for reason in values.split("|")}
    assert reasons
    assert reasons <= {reason.value for reason in StopReason}


@needs_promtool
@pytest.mark.child_process
def test_promtool_accepts_the_rules() -> None:
    printed = run_promtool(
        "check", "rules", "--lint=all", "--lint-fatal", RULES.name, folder=MONITORING
    )
    assert f"{len(ALERT_RULES)} rules found" in printed


@needs_promtool
@pytest.mark.child_process
def test_alerts_fire_as_their_tests_require() -> None:
    run_promtool("test", "rules", TESTS.name, folder=MONITORING)


@needs_promtool
@pytest.mark.child_process
def test_a_rule_that_never_fires_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / TESTS.name).write_text(TESTS.read_text("utf-8"), "utf-8")
    changed = RULES.read_text("utf-8").replace("strata_clock_skew_seconds", "strata_clock_skew")
    (tmp_path / RULES.name).write_text(changed, "utf-8")
    with pytest.raises(AssertionError, match="StrataClocksDiffer"):
        run_promtool("test", "rules", TESTS.name, folder=tmp_path)


def test_the_operator_object_contains_the_same_rules() -> None:
    (rule,) = load(ALERTS)
    assert rule["spec"]["groups"] == GROUPS["groups"]


@pytest.mark.parametrize(
    "change", [{"alert": "A"}, {"alert": "A", "expr": "1", "for": "10 min"}, {"record": "a:b"}]
)
def test_the_schema_rejects_mistakes(change: dict[str, Any]) -> None:
    (rule,) = load(ALERTS)
    jsonschema.validate(rule, PROMETHEUS_RULE_SCHEMA)
    wrong = {**rule, "spec": {"groups": [{"name": "strata", "rules": [change]}]}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, PROMETHEUS_RULE_SCHEMA)
