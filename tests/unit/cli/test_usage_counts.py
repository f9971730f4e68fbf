"""Prompt cache figures of ``strata usage``."""

from __future__ import annotations

from strata.api.gateway.v1.admin_service_pb2 import GetUsageResponse
from strata.cli.commands.usage import _counts


def test_share_of_the_input_that_came_from_the_prompt_cache_is_shown() -> None:
    usage = GetUsageResponse(prompt_tokens=2_000, cached_input_tokens=1_500)
    assert dict(_counts(usage))["from cache"] == "1,500 (75% of those sent)"


def test_without_input_there_is_no_share() -> None:
    assert dict(_counts(GetUsageResponse()))["from cache"] == "0"
