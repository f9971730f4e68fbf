"""Limits of open files by the context window."""

from __future__ import annotations

import pytest

from strata.agent_loop.domain.agent.file_limits import FileLimits, default_file_limits


@pytest.mark.parametrize(
    ("context_window", "limits"),
    [
        (8_000, FileLimits(3, 5_000)),
        (8_192, FileLimits(3, 5_000)),
        (16_384, FileLimits(5, 15_000)),
        (32_768, FileLimits(5, 15_000)),
        (131_072, FileLimits(10, 25_000)),
        (200_000, FileLimits(10, 40_000)),
        (1_000_000, FileLimits(15, 40_000)),
    ],
)
def test_windows_of_a_power_of_two_have_the_limits_of_their_name(
    context_window: int, limits: FileLimits
) -> None:
    assert default_file_limits(context_window) == limits
