"""The rule for request ids is in one place."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
_RULE = "shared/strata/shared/idempotency/keys.py"
_REFUSAL = re.compile(r"reason=Reason\.REQUEST_ID_REUSED")


def test_only_the_shared_rule_refuses_a_reused_request_id() -> None:
    roots = [path for path in ROOT.glob("*/strata") if path.is_dir()]
    modules = [path for root in roots for path in root.rglob("*.py")]
    assert modules
    refusing = {
        path.relative_to(ROOT).as_posix()
        for path in modules
        if _REFUSAL.search(path.read_text(encoding="utf-8"))
    }
    assert refusing == {_RULE}
