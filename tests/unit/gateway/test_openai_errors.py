"""Errors of OpenAI's API."""

from __future__ import annotations

import pytest

from rpc_errors import rpc_error
from strata.gateway.http.openai_api.errors import RunFailedError, of_call
from strata.protocol.errors import ResourceExhaustedError
from strata.protocol.status import to_status


@pytest.mark.parametrize(
    ("retry_after", "headers"),
    [(1.2, {"retry-after": "2"}), (60, {"retry-after": "60"}), (None, {})],
)
def test_a_refusal_has_a_retry_after_header(
    retry_after: float | None, headers: dict[str, str]
) -> None:
    refusal = ResourceExhaustedError("All slots are in use.", retry_after=retry_after)

    assert of_call(rpc_error(to_status(refusal))).headers == headers


def test_a_failed_run_must_not_be_retried() -> None:
    assert RunFailedError("Failed.", status=500, code="run_failed").headers == {
        "x-should-retry": "false"
    }
