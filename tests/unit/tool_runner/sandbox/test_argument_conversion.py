"""Conversion of JSON arguments to the annotated types of a custom tool."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

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


if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


@dataclass
class Half:
    unit: Unit
    words: Unknown


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
        ("tomorrow", dt.date | str, "tomorrow"),
        ("2026-01-02", dt.date | str, dt.date(2026, 1, 2)),
        ("2026-01-02T03Z", dt.date | dt.datetime, dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)),
        (["soon"], list[dt.date] | list[str], ["soon"]),
        ({"unit": "c", "words": [1]}, Half, Half(Unit.CELSIUS, [1])),
        ({"unit": "c", "words": [1]}, Half | None, Half(Unit.CELSIUS, [1])),
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


def test_an_annotation_that_cannot_be_evaluated_leaves_the_other_conversions() -> None:
    def tool(a: Unit, b: Missing, *, c: set[int]) -> AlsoMissing:  # type: ignore[name-defined]  # noqa: F821
        return a, b, c

    @functools.wraps(tool)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return tool(*args, **kwargs)

    arguments = {"a": "c", "b": ["c"], "c": [1, 1]}
    made = (Unit.CELSIUS, ["c"], {1})
    assert _strata_call(tool, arguments) == made
    assert _strata_call(wrapped, arguments) == made


def test_a_text_that_fits_no_option_of_a_union_raises_the_error_of_the_first() -> None:
    with pytest.raises(ValueError, match="isoformat"):
        _strata_convert("tomorrow", dt.date | None)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement type is new in Python 3.12")
def test_a_type_statement_is_the_type_that_it_names() -> None:
    module: dict[str, Any] = {}
    exec("type Numbers = set[int]\ntype More = Numbers", module)
    assert _strata_convert([1, 1], module["More"]) == {1}
    assert _strata_convert([1, 1], module["More"] | None) == {1}


def test_a_value_that_does_not_fit_raises_the_error_of_its_class() -> None:
    with pytest.raises(ValueError, match="q"):
        _strata_convert("q", Unit)
