"""Each test process imports the modules in another order, and has the tests in the same one."""

from __future__ import annotations

from pathlib import Path

from collection_order import parts_of, rotated


def test_the_processes_start_with_different_parts_and_collect_all() -> None:
    parts = [Path(name) for name in "abcdefg"]
    orders = [rotated(parts, number, 3) for number in range(3)]
    assert [order[0].name for order in orders] == ["a", "c", "e"]
    assert all(sorted(order) == parts for order in orders)
    assert rotated(parts, 0, 1) == parts


def test_parts_are_the_folders_and_modules_that_have_tests(tmp_path: Path) -> None:
    modules = ("unit/a/test_x.py", "unit/a/deep/test_y.py", "unit/test_z.py", "e2e/b/test_v.py")
    for name in (*modules, "data/c/make.py", "unit/conftest.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    names = [str(part.relative_to(tmp_path)) for part in parts_of(tmp_path)]
    assert names == ["e2e/b", "unit/a", "unit/test_z.py"]
