"""Files that share a fixture run one after another, and the longest start first."""

from __future__ import annotations

from scheduling import in_order, next_scope, scope_of

SYSTEM = "tests/e2e/system/test_files.py"


def test_a_file_with_a_shared_system_is_split_by_shape() -> None:
    assert scope_of(f"{SYSTEM}::test_a[in_process]") == f"{SYSTEM}::in_process"
    assert scope_of(f"{SYSTEM}::test_a[sockets-2]") == f"{SYSTEM}::sockets"
    assert scope_of(f"{SYSTEM}::test_alone") == SYSTEM
    # The tests of this file have separate services.
    own = "tests/integration/gateway/test_auth.py"
    assert scope_of(f"{own}::test_a[inprocess]") == own


def test_long_files_are_scheduled_first_and_unit_tests_last() -> None:
    kills = "tests/faults/test_kills.py"
    other = "tests/faults/test_passing_errors.py"
    unit = "tests/unit/web/test_a.py"
    shapes = [f"{SYSTEM}::in_process", f"{SYSTEM}::sockets"]
    assert in_order([unit, shapes[1], SYSTEM, other, shapes[0], kills]) == [
        kills,
        other,
        SYSTEM,
        *shapes,
        unit,
    ]


def test_a_worker_keeps_files_with_the_fixtures_that_it_has_started() -> None:
    folder = "tests/e2e/system"
    waiting = [
        f"{folder}/test_b.py::in_process",
        f"{folder}/test_a.py::sockets",
        "tests/unit/a/test_a.py",
    ]
    begun, helped = f"{folder}/test_a.py::in_process", "tests/e2e/cli/test_chat.py"
    assert next_scope(waiting, begun, [helped]) == waiting[0]
    assert next_scope(waiting, helped, [begun]) == waiting[1]
    assert next_scope(waiting[1:], begun, [waiting[1]]) == waiting[2]


def test_an_idle_worker_takes_files_of_others_when_nothing_else_is_left() -> None:
    waiting = ["tests/e2e/system/test_b.py", "tests/e2e/system/test_c.py"]
    assert next_scope(waiting, None, ["tests/e2e/system/test_a.py"]) == waiting[0]
