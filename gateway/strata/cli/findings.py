"""What ``strata doctor`` reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        check: What was looked at.
        verdict: How it came out.
        text: What was found.
        remedy: What to do; empty if nothing.
    """

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""
