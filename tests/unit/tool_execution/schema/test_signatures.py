"""Schemas of random signatures, compared with the functions that Python compiles.

The reference is slow and runs the source: Python binds the arguments, and a check by the evaluated
annotations says whether each value is of its kind. Both must agree with the schema, which was
derived without running anything; and values that the schema accepts reach the function with the
annotated type.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import sys
import types
import typing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from strata.protocol import argument_conversion
from strata.tool_execution.schema import derive_tool

PREAMBLE = """
import enum
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, TypedDict, Union

class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"
    ZERO = 0

@dataclass
class Place:
    name: str
    unit: Unit = Unit.CELSIUS

@dataclass
class Trip:
    places: list[Place]
    days: Optional[int] = None

class Options(TypedDict, total=False):
    loud: bool
    place: Place
"""
LEAVES = ["str", "int", "float", "bool", "None", "Any", "Unit", "Place", "Trip", "Options"]
LEAVES += ["Literal['a', 'b', 3]", "Literal['c']", "list", "dict"]


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("list[{}]".format, inner),
        st.builds("typing.List[{}]".format, inner),
        st.builds("dict[str, {}]".format, inner),
        st.builds("tuple[{}, ...]".format, inner),
        st.builds("tuple[{}, {}]".format, inner, inner),
        st.builds("Optional[{}]".format, inner),
        st.builds("Union[{}, {}]".format, inner, inner),
    )


kinds = st.recursive(st.sampled_from(LEAVES), _wider, max_leaves=4)
parameters: st.SearchStrategy[list[tuple[str, bool]]] = st.lists(
    st.tuples(kinds, st.booleans()), min_size=1, max_size=4
)
leaf_values: st.SearchStrategy[Any] = st.sampled_from(
    ["a", "b", "c", "k", "", 0, 1, 3, -7, 0.5, True, False, None]
)
objects = st.one_of(
    st.fixed_dictionaries({"name": leaf_values}, optional={"unit": leaf_values}),
    st.fixed_dictionaries({}, optional={"loud": leaf_values, "x": leaf_values}),
)
values = st.recursive(
    st.one_of(leaf_values, objects),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["places", "days", "place", "q"]), inner, max_size=2),
    ),
    max_leaves=5,
)


def build(chosen: list[tuple[str, bool]]) -> tuple[str, Any]:
    """Returns the source of a function with these parameters, and the function."""
    text = ", ".join(
        f"p{number}: {annotation}{' = 0' if default else ''}"
        for number, (annotation, default) in enumerate(chosen)
    )
    source = f"{PREAMBLE}\ndef f(*, {text}):\n    return locals()\n"
    # One parameter is not keyword-only, to have both kinds.
    source = source.replace("f(*, ", "f(", 1) if not chosen[0][1] and len(chosen) == 1 else source
    module = types.ModuleType("reference")
    # Dataclasses look up their module.
    sys.modules["reference"] = module
    exec(compile(source, "<reference>", "exec", dont_inherit=True), module.__dict__)
    return source, module.__dict__["f"]


def fits(value: Any, kind: Any) -> bool:  # noqa: C901  # noqa: PLR0911
    """Returns whether a JSON value matches the evaluated annotation."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if kind in (None, type(None)):
        return value is None
    if origin is typing.Union:
        return any(fits(value, option) for option in inside)
    if origin is typing.Literal:
        return any(value == option and type(value) is type(option) for option in inside)
    whole: Any = origin or kind
    if whole in (list, tuple):
        if not isinstance(value, list):
            return False
        if whole is tuple and inside[-1] is not ...:
            pairs = zip(value, inside, strict=False)
            return len(value) == len(inside) and all(fits(*pair) for pair in pairs)
        return all(fits(item, inside[0]) for item in value) if inside else True
    if whole is dict:
        if not isinstance(value, dict):
            return False
        return all(fits(item, inside[1]) for item in value.values()) if inside else True
    if issubclass(whole, enum.Enum):
        return any(value == option.value and type(value) is type(option.value) for option in whole)
    if typing.is_typeddict(whole) or dataclasses.is_dataclass(whole):
        hints = typing.get_type_hints(whole)
        if not isinstance(value, dict) or not set(value) <= set(hints):
            return False
        try:
            whole(**value)  # binds its fields
        except TypeError:
            return False
        return all(fits(item, hints[name]) for name, item in value.items())
    if whole is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is whole


@given(parameters, st.data())
def test_a_schema_accepts_exactly_the_arguments_that_python_binds(
    chosen: list[tuple[str, bool]], data: st.DataObject
) -> None:
    source, function = build(chosen)
    derived = derive_tool(source)
    hints = typing.get_type_hints(function)
    names = [f"p{number}" for number in range(len(chosen))]
    arguments = data.draw(
        st.dictionaries(st.sampled_from([*names, "unknown"]), values, max_size=len(names) + 1)
    )
    try:
        inspect.signature(function).bind(**arguments)
        bound = all(fits(value, hints[name]) for name, value in arguments.items())
    except TypeError:
        bound = False
    Draft202012Validator.check_schema(derived.parameters)
    taken = Draft202012Validator(derived.parameters).is_valid(arguments)
    assert taken == bound, (derived.parameters, arguments)
    json.dumps(derived.parameters, allow_nan=False)
    if taken:
        reached = argument_conversion._strata_call(function, arguments)
        assert all(is_made(reached[name], hints[name]) for name in arguments), reached


def is_made(value: Any, kind: Any) -> bool:
    """Returns whether a value in a function matches its annotation: enums are members there."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if kind in (None, type(None)):
        return value is None
    if origin is typing.Union:
        return any(is_made(value, option) for option in inside)
    if origin is typing.Literal:
        return value in inside
    whole: Any = origin or kind
    if typing.is_typeddict(whole):
        hints = typing.get_type_hints(whole)
        return isinstance(value, dict) and all(
            is_made(item, hints[name]) for name, item in value.items()
        )
    if not isinstance(value, (int, float) if whole is float else (whole,)):
        return False
    value = typing.cast("Any", value)
    if dataclasses.is_dataclass(whole):
        hints = typing.get_type_hints(whole)
        return all(is_made(getattr(value, name), hint) for name, hint in hints.items())
    if whole is list and inside:
        return all(is_made(item, inside[0]) for item in value)
    if whole is tuple:
        kinds = [inside[0]] * len(value) if inside[-1] is ... else inside
        return all(is_made(*pair) for pair in zip(value, kinds, strict=True))
    if whole is dict and inside:
        return all(is_made(item, inside[1]) for item in value.values())
    return True
