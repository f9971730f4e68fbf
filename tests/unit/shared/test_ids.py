"""Prefixed ids."""

from __future__ import annotations

import threading
import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.protocol.errors import InvalidArgumentError, Reason
from strata.shared.ids import check_id, is_id, new_id, new_uuid7


def test_an_id_is_its_prefix_and_a_version_7_uuid() -> None:
    value = new_id("agent")
    assert value.startswith("agent-")
    uuid = UUID(value.removeprefix("agent-"))
    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert value == value.lower()


def test_ids_increase_strictly_also_in_a_burst() -> None:
    values = [new_uuid7() for _ in range(20_000)]
    assert values == sorted(set(values))


def test_ids_increase_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_uuid7()
    past = time.time_ns() - 10**12
    monkeypatch.setattr(time, "time_ns", lambda: past)
    after = [new_uuid7() for _ in range(5000)]
    assert [before, *after] == sorted({before, *after})


def test_threads_never_make_the_same_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]

    def work(into: list[str]) -> None:
        into.extend(new_uuid7() for _ in range(3000))

    threads = [threading.Thread(target=work, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({value for values in made for value in values}) == 12_000


@given(st.from_regex(r"[a-z][a-z-]{0,15}", fullmatch=True))
def test_every_new_id_passes_its_own_check(prefix: str) -> None:
    value = new_id(prefix)
    assert check_id(value, prefix, field="id") == value


@given(st.text(max_size=60))
def test_other_texts_are_refused_as_ids(value: str) -> None:
    assert not is_id(value, "agent")
    with pytest.raises(InvalidArgumentError) as raised:
        check_id(value, "agent", field="items[0].agent_id")
    error = raised.value
    assert error.reason is Reason.INVALID_ID
    assert error.metadata["expected_prefix"] == "agent"
    assert [violation.field for violation in error.violations] == ["items[0].agent_id"]


@pytest.mark.parametrize("change", [str.upper, lambda v: v + "\n", lambda v: v[:-1], "x{}".format])
def test_slightly_changed_ids_are_refused(change: object) -> None:
    assert callable(change)
    assert not is_id(change(new_id("agent")), "agent")
    assert not is_id(new_id("block"), "agent")
