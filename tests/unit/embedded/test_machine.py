"""How much memory there is, and how much of it PostgreSQL gets."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from strata.embedded.machine import usable_memory
from strata.embedded.postgres import shared_buffers_mb

_GIB = 1 << 30


@pytest.mark.parametrize("told", ["max\n", "", None, str(1 << 60)])
def test_without_a_limit_it_is_the_machines_memory(tmp_path: Path, told: str | None) -> None:
    limit = tmp_path / "memory.max"
    if told is not None:
        limit.write_text(told)
    assert usable_memory(limit) == psutil.virtual_memory().total


def test_the_limit_of_a_container_is_less_than_the_machine(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("536870912\n")
    assert usable_memory(limit) == 512 << 20


@pytest.mark.parametrize(("gib", "mb"), [(0.5, 64), (2, 64), (8, 256), (16, 512), (512, 512)])
def test_tables_get_a_part_of_it(gib: float, mb: int) -> None:
    assert shared_buffers_mb(int(gib * _GIB)) == mb
