"""What models refused, as it is looked up for each request."""

from __future__ import annotations

from typing import Any

from strata.agent_loop.models.refused_parameters import Refusals


class _Messages:
    """A value that is large when it is written out."""

    def __repr__(self) -> str:
        raise AssertionError("it was written out")


def test_no_value_is_written_out_while_none_is_refused() -> None:
    refusals = Refusals({"temperature"})

    assert not refusals.covers("messages", _Messages())
    assert refusals.covers("temperature", _Messages())


def test_a_refused_value_is_left_out_and_others_are_sent() -> None:
    refusals = Refusals()
    value: Any = {"effort": "high"}

    assert refusals.add("reasoning", value, only_value=True)

    assert refusals.covers("reasoning", {"effort": "high"})
    assert not refusals.covers("reasoning", {"effort": "low"})
    assert not refusals.add("reasoning", value, only_value=True)
