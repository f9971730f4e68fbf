"""Tools derived from Python source."""

from __future__ import annotations

import sys
from textwrap import dedent
from typing import Any

import pytest

from strata.tool_execution.schema import DerivedTool, SourceError, derive_tool
from strata.tool_execution.schema.derive import takes_agent_state


def derived(source: str, name: str = "") -> DerivedTool:
    return derive_tool(dedent(source), name)


def schema(annotation: str, before: str = "") -> Any:
    """The schema of one parameter."""
    tool = derived(f"{dedent(before)}\ndef f(x: {annotation}): ...")
    return tool.parameters["properties"]["x"]


def problems(source: str, name: str = "") -> list[str]:
    with pytest.raises(SourceError) as caught:
        derived(source, name)
    return [str(problem) for problem in caught.value.problems]


def test_a_function_is_parsed_with_its_docstring() -> None:
    tool = derived(
        '''
        import os

        os.remove("nothing of this is run")

        def weather(town: str, days: int = 3, *, exact: bool = False) -> str:
            """Tells the weather.

            Of any town: also small ones.

            Args:
                town (str): The town,
                    as people there call it.
                days: How many.

            Returns:
                A sentence.
            """
        '''
    )
    assert tool == DerivedTool(
        "weather",
        "Tells the weather.\n\nOf any town: also small ones.",
        {
            "type": "object",
            "properties": {
                "town": {"type": "string", "description": "The town, as people there call it."},
                "days": {"type": "integer", "description": "How many.", "default": 3},
                "exact": {"type": "boolean", "default": False},
            },
            "required": ["town"],
            "additionalProperties": False,
        },
    )


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("str", {"type": "string"}),
        ("'int'", {"type": "integer"}),
        ("float", {"type": "number"}),
        ("None", {"type": "null"}),
        ("t.Any", {}),
        ("int | None", {"type": ["integer", "null"]}),
        ("t.Optional[str]", {"type": ["string", "null"]}),
        ("Union[int, str, None]", {"type": ["integer", "string", "null"]}),
        ("t.Literal['a', 'b']", {"type": "string", "enum": ["a", "b"]}),
        ("t.Literal['a', 1, None]", {"enum": ["a", 1, None]}),
        ("list", {"type": "array", "items": {}}),
        ("t.List[int]", {"type": "array", "items": {"type": "integer"}}),
        ("Sequence[str]", {"type": "array", "items": {"type": "string"}}),
        ("set[int]", {"type": "array", "items": {"type": "integer"}}),
        ("dict", {"type": "object", "additionalProperties": True}),
        (
            "t.Dict[str, list[int]]",
            {
                "type": "object",
                "additionalProperties": {"type": "array", "items": {"type": "integer"}},
            },
        ),
        ("tuple[int, ...]", {"type": "array", "items": {"type": "integer"}}),
        (
            "tuple[int, int]",
            {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        ),
        (
            "tuple[int, str]",
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        ("t.Annotated[int, 'Years.']", {"type": "integer", "description": "Years."}),
        (
            "list[int] | None",
            {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        ),
        ("Town", {"type": "string"}),
        ("datetime.date", {"type": "string", "format": "date"}),
    ],
)
def test_annotations_become_schemas(annotation: str, expected: Any) -> None:
    before = """
        from __future__ import annotations
        import datetime
        import typing as t
        from collections.abc import Sequence
        from typing_extensions import Union
        Town = str
    """
    assert schema(annotation, before) == expected


def test_all_names_of_typing_can_be_imported_at_once() -> None:
    annotation = "Optional[List[Literal['a', 'b']]]"
    expected = schema(annotation, "from typing import List, Literal, Optional")
    assert schema(annotation, "from typing import *") == expected


CLASSES = """
    import enum
    from dataclasses import dataclass, field
    from typing import Annotated, ClassVar, NotRequired, Optional, TypedDict
    from pydantic import BaseModel, Field

    class Unit(enum.StrEnum):
        CELSIUS = "c"
        KELVIN = "k"

    @dataclass
    class Place:
        name: str
        unit: Unit = Unit.CELSIUS
        tags: list[str] = field(default_factory=list)
        size: int = field(init=False, default=0)
        count: ClassVar[int] = 0

    @dataclass(frozen=True)
    class Town(Place):
        mayor: Optional[str] = None

    class Base(BaseModel):
        places: list[Place] = Field(..., description="Where.")

    class Trip(Base):
        days: int = Field(3, ge=1, le=9)
        note: Annotated[str, Field(description="Free.")] = ""
        _secret: int = 0

    class Options(TypedDict, total=False):
        a: int

    class More(Options):
        b: str
        c: NotRequired[bool]
"""
PLACE = {
    "name": {"type": "string"},
    "unit": {"type": "string", "enum": ["c", "k"]},
    "tags": {"type": "array", "items": {"type": "string"}},
}


def closed(properties: dict[str, Any], *required: str) -> Any:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Unit", {"type": "string", "enum": ["c", "k"]}),
        ("Place", closed(PLACE, "name")),
        ("Town", closed({**PLACE, "mayor": {"type": ["string", "null"]}}, "name")),
        (
            "Trip",
            closed(
                {
                    "places": {
                        "type": "array",
                        "items": closed(PLACE, "name"),
                        "description": "Where.",
                    },
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                    "note": {"type": "string", "description": "Free."},
                },
                "places",
            ),
        ),
        (
            "More",
            closed(
                {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}}, "b"
            ),
        ),
    ],
)
def test_classes_of_the_source_become_objects(name: str, expected: Any) -> None:
    assert schema(name, CLASSES) == expected


def test_the_named_one_of_several_functions_is_the_tool() -> None:
    source = "def a(): ...\ndef b(x: int): ...\ndef _c(): ..."
    assert derived(source, "b").function == "b"
    assert derived("def _a(): ...\ndef b(): ...", "other").function == "b"
    [problem] = problems(source)
    assert "a, b" in problem
    [problem] = problems("class A:\n    def a(self): ...\ndef _b(): ...")
    assert "no public function" in problem
    assert "_b" in problem


def test_the_state_parameter_is_not_in_the_schema_and_is_reported() -> None:
    tool = derived("def f(x: int, agent_state): ...")
    assert list(tool.parameters["properties"]) == ["x"]
    assert tool.takes_agent_state


@pytest.mark.parametrize(
    ("source", "line", "parameter", "expected"),
    [
        ("def f(x): ...", 1, "x", "no annotation"),
        ("\n\ndef f(a: int,\n      b): ...", 4, "b", "no annotation"),
        ("def f(*args): ...", 1, "args", "name every parameter"),
        ("def f(**kwargs): ...", 1, "kwargs", "name every parameter"),
        ("def f(self, x: int): ...", 1, "self", "method"),
        ("def f(x: int, /): ...", 1, "x", "by name"),
        ("def f(x: bytes): ...", 1, "x", "JSON"),
        ("def f(x: Unknown): ...", 1, "x", "Unknown"),
        ("def f(x: dict[int, str]): ...", 1, "x", "keys"),
        ("class A: ...\ndef f(x: A): ...", 2, "x", "A is not an Enum"),
        ("def f(x: 'list['): ...", 1, "x", "not an annotation"),
        ("from typing import Literal\ndef f(x: Literal[b'a']): ...", 2, "x", "Literal"),
        ("import enum\nclass E(enum.Enum):\n  A = enum.auto()\ndef f(x: E): ...", 4, "x", "E.A"),
        ("X = 'X | int'\ndef f(x: X): ...", 2, "x", "contains itself"),
        ("def f(x: int):\n  '''Does.\n\n  Args:\n    y: Gone.\n  '''", 1, "y", "not a parameter"),
        ("x = (", 1, "", "not valid Python"),
        ("def ü(): ...", 1, "", "ASCII"),
        ("def f(x: str = '\\ud800'): ...", 1, "", "half a character"),
        ("def f(): '\\0'", 1, "", "NUL"),
        ("import enum\nclass E(enum.Enum):\n  A = 1e999\ndef f(x: E): ...", 4, "", "number"),
    ],
)
def test_errors_name_line_and_parameter(
    source: str, line: int, parameter: str, expected: str
) -> None:
    with pytest.raises(SourceError) as caught:
        derive_tool(source)
    texts = {(problem.line, problem.parameter): problem.text for problem in caught.value.problems}
    assert (line, parameter) in texts, texts
    assert expected in texts[line, parameter]


def test_all_errors_are_reported_at_once_in_order() -> None:
    texts = problems("def f(*a,\n  b,\n  c: bytes): ...")
    assert [text.partition(":")[0] for text in texts] == [
        "line 1, parameter 'a'",
        "line 2, parameter 'b'",
        "line 3, parameter 'c'",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "x=" + "-" * 90_000 + "1\ndef f(): ...",
        "def f(x: " + "|".join(["int"] * 15_000) + "): ...",
        "def f(x: " + "list[" * 60 + "int" + "]" * 60 + "): ...",
        "x = " + "[" * 5_000,
        "#" * 200_000,
        "def f(x: 'str\0'): ...",
        # Each class holds the one before twice: 2 to the power of 30 members.
        "from dataclasses import dataclass\n@dataclass\nclass C0:\n  a: int\n"
        + "".join(f"@dataclass\nclass C{n}:\n  a: C{n - 1}\n  b: C{n - 1}\n" for n in range(1, 20))
        + "def f(x: C19): ...",
    ],
)
def test_hostile_source_is_refused_with_an_error(source: str) -> None:
    with pytest.raises(SourceError):
        derive_tool(source)


def test_defaults_that_json_cannot_express_are_omitted() -> None:
    tool = derived(
        "def f(a: int = 1 + 2, b: float = 1e999, c: tuple[int, int] = (1, 2),"
        " d: dict = {1: 2, 'a': 3}, e: int = max(1, 2), g: set[int] = {1}): ..."
    )
    properties = tool.parameters["properties"]
    defaults = {
        name: schema["default"] for name, schema in properties.items() if "default" in schema
    }
    assert defaults == {"c": [1, 2], "d": {"1": 2, "a": 3}}
    assert tool.parameters["required"] == []


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        ("def f(agent_state): ...", True),
        ("async def f(x: int, *, agent_state): ...", True),
        ("def f(x: int): 'agent_state'", False),
        ("def _g(agent_state): ...\ndef f(): ...", False),
        # Of two functions with the same name the last one is called.
        ("def f(agent_state): ...\ndef f(): ...", False),
        ("def f(): ...\ndef f(agent_state): ...", True),
        ("def f(agent_state): return '\\d'", True),
    ],
)
def test_the_state_parameter_is_read_from_the_source(source: str, takes: bool) -> None:
    assert takes_agent_state(source, "f") is takes
    assert derived(source).takes_agent_state is takes


def test_the_mark_between_fields_of_a_dataclass_is_no_member() -> None:
    point = """
        from dataclasses import KW_ONLY, dataclass

        @dataclass
        class Point:
            x: int
            _: KW_ONLY
            y: int = 0
    """
    assert schema("Point", point)["properties"] == {
        "x": {"type": "integer"},
        "y": {"type": "integer"},
    }


def test_a_field_of_pydantic_is_refused_as_a_default() -> None:
    # Outside of a model nothing reads it: the function would get the object itself.
    source = """
        from pydantic import Field

        def f(x: int = Field(5, description="How many.")) -> int:
            return x
    """
    (problem,) = problems(source)
    assert "Annotated[int, Field(...)]" in problem


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement type is new in Python 3.12")
def test_a_type_statement_is_the_type_that_it_names() -> None:
    integers = {"type": "array", "items": {"type": "integer"}}
    assert schema("Numbers", "type Numbers = list[int]") == integers
    assert problems("type A = list[A]\ndef f(x: A): ...")
    assert problems("type A[T] = list[T]\ndef f(x: A[int]): ...")
