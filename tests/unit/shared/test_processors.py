"""The processors that a process may use, and their features."""

from __future__ import annotations

import pytest

from strata.shared.processors import (
    parse_cpu_quota,
    parse_features,
    parse_threads_per_core,
    usable_cores,
)


def test_hardware_threads_per_core_are_counted() -> None:
    text = "processor: 0\nsiblings\t: 8\ncpu cores\t: 4\n"
    assert parse_threads_per_core(text) == 2
    assert parse_threads_per_core("") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000\n", None), ("250000 100000\n", 2.5), ("50000 100000\n", 0.5), ("", None)],
)
def test_the_quota_of_a_cgroup_is_read(text: str, expected: float | None) -> None:
    assert parse_cpu_quota(text) == expected


def test_this_machine_has_at_least_one_core() -> None:
    assert usable_cores() >= 1


def test_only_features_of_all_processors_are_used() -> None:
    text = "processor: 0\nflags\t\t: avx avx2 fma\n\nprocessor: 1\nflags\t\t: avx avx2\n"
    assert parse_features(text) == frozenset({"avx", "avx2"})
    assert parse_features("") == frozenset()
