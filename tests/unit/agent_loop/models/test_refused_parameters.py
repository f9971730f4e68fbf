"""Parameters that a model refused, as they are looked up for each request."""

from __future__ import annotations

from typing import Any

from strata.agent_loop.models.refused_parameters import Refusals


class _Messages:
    """A value that must not be serialised."""

    def __repr__(self) -> str:
        raise AssertionError("it was written out")


def test_values_are_not_serialized_while_none_is_refused() -> None:
    refusals = Refusals({"temperature"})

    assert not refusals.covers("messages", _Messages())
    assert refusals.covers("temperature", _Messages())


def test_only_the_refused_value_is_left_out() -> None:
    refusals = Refusals()
    value: Any = {"effort": "high"}

    assert refusals.add("reasoning", value, only_value=True)

    assert refusals.covers("reasoning", {"effort": "high"})
    assert not refusals.covers("reasoning", {"effort": "low"})
    assert not refusals.add("reasoning", value, only_value=True)
