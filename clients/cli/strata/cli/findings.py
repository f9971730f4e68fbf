"""Results of the checks of ``strata doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckVerdict(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report of ``strata doctor``.

    Attributes:
        check: Name of the check.
        verdict: Its result.
        text: The finding of the check.
        remedy: The remedy; empty if there is no problem.
    """

    check: str
    verdict: CheckVerdict
    text: str
    remedy: str = ""
