"""Conversion of JSON arguments to the annotated types of a custom tool."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel

from strata.protocol.argument_conversion import _strata_call, _strata_convert


class Unit(enum.Enum):
    CELSIUS = "c"
    ONE = 1


@dataclass
class Place:
    name: str
    unit: Unit = Unit.CELSIUS
    tags: list[str] = field(default_factory=list)


class Trip(BaseModel):
    places: list[int]


class Options(TypedDict):
    place: Place


class Plain:
    pass


@pytest.mark.parametrize(
    ("value", "kind", "made"),
    [
        ("c", Unit, Unit.CELSIUS),
        ([1, "c"], list[Unit], [Unit.ONE, Unit.CELSIUS]),
        ({"name": "x", "unit": "c"}, Place, Place("x", Unit.CELSIUS)),
        ({"places": [1]}, Trip, Trip(places=[1])),
        ({"place": {"name": "x"}}, Options, {"place": Place("x")}),
        ([{"name": "x"}, None], list[Place | None] | None, [Place("x"), None]),
        ({"a": {"name": "x"}}, dict[str, Place], {"a": Place("x")}),
        ({"places": [1]}, Place | Trip, Trip(places=[1])),
        ({"name": "x"}, Trip | Place, Place("x")),
        ([1, 1], tuple[int, Unit], (1, Unit.ONE)),
        ([1, 1], tuple[Unit, ...], (Unit.ONE, Unit.ONE)),
        ([2, 2], set[int], {2}),
        ([1], frozenset, frozenset({1})),
        ("2026-01-02", dt.date, dt.date(2026, 1, 2)),
        ("2026-01-02T03Z", dt.datetime | None, dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)),
        ("c", Annotated[Unit, "words"], Unit.CELSIUS),
        (1, bool | int, 1),
        (None, Unit | None, None),
        ({"x": 1}, Plain, {"x": 1}),
        ([1], Any, [1]),
        (["c"], Options | list[Unit], [Unit.CELSIUS]),
        (["c"], Options | str, ["c"]),
        ("x", int, "x"),
    ],
)
def test_a_value_is_converted_to_its_annotated_type(value: Any, kind: Any, made: Any) -> None:
    converted = _strata_convert(value, kind)
    assert converted == made
    assert type(converted) is type(made)


def test_a_function_gets_its_arguments_and_defaults() -> None:
    def tool(a: Unit, b: int = 2, *, c: Unit = Unit.ONE) -> Any:
        return a, b, c

    assert _strata_call(tool, {"a": "c"}) == (Unit.CELSIUS, 2, Unit.ONE)


def test_annotations_that_cannot_be_evaluated_leave_values_as_they_are() -> None:
    def tool(a: Missing) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return a

    assert _strata_call(tool, {"a": {"x": 1}}) == {"x": 1}


def test_a_value_that_does_not_fit_raises_the_error_of_its_class() -> None:
    with pytest.raises(ValueError, match="q"):
        _strata_convert("q", Unit)
