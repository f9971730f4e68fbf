"""The rule for request ids is in one place."""

from __future__ import annotations

import re

from unit.house.repository import modules, name_of, text_of

_RULE = "shared/strata/shared/idempotency/keys.py"
_REFUSAL = re.compile(r"reason=Reason\.REQUEST_ID_REUSED")


def test_only_the_shared_rule_refuses_a_reused_request_id() -> None:
    refusing = {name_of(path) for path in modules() if _REFUSAL.search(text_of(path))}
    assert refusing == {_RULE}
