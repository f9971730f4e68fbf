"""Clock differences that ``strata doctor`` reports."""

from __future__ import annotations

from strata.cli.checks import clocks
from strata.cli.findings import CheckVerdict


def test_clocks_that_agree_are_reported_in_one_line() -> None:
    (finding,) = clocks(0.2, {"recall": 0.1, "archival": -0.3})
    assert (finding.verdict, finding.text) == (CheckVerdict.OK, "all agree")


def test_a_service_with_a_wrong_clock_is_named() -> None:
    # This machine is 100 s behind the gateway, which has no effect.
    (finding,) = clocks(100.0, {"recall": 130.0, "archival": 100.0, "tool_execution": None})
    assert finding.verdict is CheckVerdict.WARN
    assert "recall is 30 s ahead of" in finding.text
    assert "NTP" in finding.remedy


def test_a_difference_that_is_not_tolerated_fails() -> None:
    (finding,) = clocks(0.0, {"recall": -300.0})
    assert finding.verdict is CheckVerdict.FAIL
    assert "recall is 300 s behind" in finding.text


def test_clock_that_differs_from_the_gateway_is_reported() -> None:
    (finding,) = clocks(-40.0, {"recall": -40.0})
    assert finding.verdict is CheckVerdict.OK
    assert "this machine differs from the gateway by 40 s" in finding.text


def test_a_gateway_that_sends_no_time_is_not_checked() -> None:
    assert clocks(None, {"recall": None}) == []
