"""Extraction of functions from their modules, with the names that they use."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest

from strata.client import ToolSourceError, tool_source

Load = Callable[[str], ModuleType]
_NUMBERS = itertools.count()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Imports a module from its text."""
    loaded = []

    def load(text: str) -> ModuleType:
        name = f"tool_module_{next(_NUMBERS)}"
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        loaded.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]


def call(source: str, name: str, *arguments: Any) -> Any:
    """Runs extracted source by itself, and calls the function in it."""
    alone = ModuleType("alone")
    sys.modules["alone"] = alone
    try:
        exec(compile(source, "<alone>", "exec"), alone.__dict__)
        return alone.__dict__[name](*arguments)
    finally:
        del sys.modules["alone"]


def refused(function: Any, **options: Any) -> list[str]:
    with pytest.raises(ToolSourceError) as error:
        tool_source(function, **options)
    assert [violation.description for violation in error.value.violations] == [
        str(problem) for problem in error.value.problems
    ]
    return [str(problem) for problem in error.value.problems]


MODULE = '''
"""Weather."""

from __future__ import annotations

import json, os
import random
from dataclasses import asdict, dataclass, field
from enum import Enum

UNUSED = random.random()
SCALE = 2  # twice


class Unit(Enum):
    C = "c"


@dataclass
class Place:
    name: str
    unit: Unit = Unit.C
    tags: list[str] = field(default_factory=list)


def never(x: int) -> int:
    return UNUSED + x


def shout(text: str) -> str:
    # Loud.
    return text.upper() * SCALE


def weather(place: Place, days: int = SCALE) -> str:
    """Tells the weather."""
    return shout(json.dumps({"place": place.name, "days": days}))


if __name__ == "__main__":
    print(weather(Place("Rome")))
'''

EXTRACTED = '''\
from __future__ import annotations
import json
from dataclasses import dataclass, field
from enum import Enum
SCALE = 2


class Unit(Enum):
    C = "c"


@dataclass
class Place:
    name: str
    unit: Unit = Unit.C
    tags: list[str] = field(default_factory=list)


def shout(text: str) -> str:
    # Loud.
    return text.upper() * SCALE


def weather(place: Place, days: int = SCALE) -> str:
    """Tells the weather."""
    return shout(json.dumps({"place": place.name, "days": days}))
'''


def test_only_used_statements_are_extracted_in_their_order(load: Load) -> None:
    assert tool_source(load(MODULE).weather) == EXTRACTED


def test_a_name_is_extracted_with_the_statements_that_bind_and_change_it(load: Load) -> None:
    module = load("""
import sys
TABLE = {}
TABLE["a"] = 1
TABLE.update(b=2)
for letter in "cd":
    TABLE[letter] = len(TABLE) + 1
try:
    import not_there_at_all as other
except ImportError:
    other = None
if sys.version_info > (3,):
    STEP = 1
else:
    STEP = 0
STEP += 10
OTHER = {}
OTHER["x"] = 1
for letter in "yz":
    OTHER[letter] = 2

def total() -> list:
    "Sums."
    return [sum(TABLE.values()), other, STEP]
""")
    source = tool_source(module.total, packages=False)
    assert call(source, "total") == module.total() == [10, None, 11]
    assert "OTHER" not in source


def test_quoted_types_and_type_checking_imports_are_included(load: Load) -> None:
    module = load("""
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict
if TYPE_CHECKING:
    from not_there import Nothing

class Point(TypedDict):
    x: int

word = 1

def move(to: "list[Point]", how: Literal["a", "fast"], note: Annotated[str, "why so"],
         by: "Nothing") -> "Point | None":
    "Moves."
    later: "Unknown" = to
    return later[0]
""")
    source = tool_source(module.move, packages=False)
    assert call(source, "move", [{"x": 1}], "a", "", None) == {"x": 1}
    assert "class Point" in source
    assert "word" not in source
    assert "from not_there" in source


def test_names_of_inner_scopes_do_not_refer_to_the_module(load: Load) -> None:
    module = load("""
def broken() -> None:
    return nothing_like_this
n = k = text = broken

def count(words: list[str]) -> dict:
    "Counts."
    def inner(k: int) -> int:
        text = k
        return text
    class Box:
        n = 3
    found = {n: len(n) for n in words if (k := len(n)) > 1}
    return {**found, "n": Box.n, "k": inner(7), **{str(n): (lambda n: n)(1) for n in range(1)}}
""")
    source = tool_source(module.count)
    assert source.startswith("def count")
    assert call(source, "count", ["ab"]) == module.count(["ab"])


def test_async_functions_and_those_under_a_condition_are_functions(load: Load) -> None:
    module = load("""
import asyncio
BASE = 4
if BASE:
    async def wait(n: int) -> int:
        "Waits."
        await asyncio.sleep(0)
        return n + BASE if n else await wait(1)
""")
    source = tool_source(module.wait)
    assert "\nasync def wait" in source
    assert "if BASE:" not in source


def test_plain_values_of_a_closure_become_constants(load: Load) -> None:
    module = load('''
def outer(limit, names):
    from math import floor
    def tool(x: float) -> list:
        """Cuts.

      Even here.
        """
        text = """
  two
"""
        return [min(x, limit), names, text, helper(x), tool.__name__]
    return tool

def helper(x: float) -> float:
    return -x

tool = outer(2.5, {"a": (1, None, b"x"), "b": [{True}]})
''')
    source = tool_source(module.tool)
    assert call(source, "tool", 9) == module.tool(9)
    assert "outer" not in source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def tool(x: int) -> int:\n    return x + missing\n", ["line 2: uses missing"]),
        (
            "def help_me():\n    return [gone\n    ,  lost]\ndef tool():\n    return help_me()\n",
            ["line 2: uses gone", "line 3: uses lost"],
        ),
        ("def tool(x: 'int', y=__file__): ...\n", ["line 1: uses __file__"]),
        (
            "import functools\n@functools.lru_cache\ndef tool(): ...\n",
            ["is wrapped by a decorator"],
        ),
        (
            "def same(f): return f\n@same\ndef tool(): ...\n",
            ["line 2: has the decorator @same"],
        ),
        ("from os.path import *\ndef tool(): return join\n", ["line 2: uses join, which may come"]),
        (
            "def tool(): return late\nif __name__ == '__mai' + 'n__':\n    late = 1\n",
            ['line 1: uses late, which is defined only where __name__ == "__main__"'],
        ),
        ("import numpy\ndef tool(): return numpy\n", ["line 1: imports numpy"]),
        (
            "def tool():\n    import yaml.nodes, json\n    from grpc.aio import Channel\n",
            ["line 2: imports yaml", "line 3: imports grpc"],
        ),
        (
            "def tool():\n    from . import friend\n",
            ["line 2: from . import friend imports your own package"],
        ),
        ("def tool(): ...\nx = 1\ndef tool(): ...\n", ["line 3: the module binds tool again"]),
        ("tool = lambda x: x\n", ["is a lambda"]),
        ("class A:\n    def tool(self): ...\ntool = A.tool\n", ["line 2: is a method"]),
        ("class A:\n    def tool(self): ...\ntool = A().tool\n", ["is a method"]),
        ("class tool: ...\n", ["is not a function written with def"]),
        ("def tool():\n    yield 1\n", ["yields; return a list instead"]),
        ("async def tool():\n    yield 1\n", ["yields; return a list instead"]),
        ("def _tool(): ...\ntool = _tool\n", ["begins with _"]),
        (
            "exec(compile('def tool(): ...', '<no file>', 'exec'))\n",
            ["has no source to read"],
        ),
        (
            """
def outer(f):
    def tool(x: int):
        return x, f
    return tool
tool = outer(print)
""",
            ["line 4: uses f of the enclosing function, a builtin_function_or_method"],
        ),
        (
            "def outer():\n    T = int\n    def tool(x: T): ...\n    return tool\ntool = outer()\n",
            ["line 3: uses T, which only outer() defines"],
        ),
        (
            """
def outer(len):
    def tool(): return len, size()
    return tool
def size(): return len('')
tool = outer(1)
""",
            ["line 3: len has one meaning in this function and another one in the module"],
        ),
        (
            "def outer(x=1e999):\n    def tool(): return x\n    return tool\ntool = outer()\n",
            ["line 2: uses x of the enclosing function, a float"],
        ),
    ],
)
def test_functions_that_are_not_self_contained_are_refused_by_name_and_line(
    load: Load, text: str, expected: list[str]
) -> None:
    problems = refused(load(text).tool, packages=False)
    assert len(problems) == len(expected), problems
    for problem, beginning in zip(problems, expected, strict=True):
        assert problem.startswith(beginning)


def test_packages_may_be_imported_if_they_will_be_installed(load: Load) -> None:
    module = load("import numpy as np, yaml\ndef tool():\n    return np.array\n")
    assert tool_source(module.tool).startswith("import numpy as np\n")


@pytest.mark.parametrize("thing", [len, functools.partial(print), 3, print, object()])
def test_objects_other_than_functions_are_refused(thing: Any) -> None:
    assert refused(thing) == ["is not a function written with def"]


def test_a_changed_file_does_not_count_as_the_source_of_the_function(load: Load) -> None:
    module = load("def tool(x: int) -> int:\n    return x\n")
    path = Path(str(module.__file__))
    path.write_text("# New.\n\n" + path.read_text())
    [problem] = refused(module.tool)
    assert "as it was loaded; load it again" in problem
    path.write_text("def tool(y: int) -> int:\n    return y\n\n\n")
    assert len(refused(module.tool)) == 1
    path.write_text("def tool(x\n")
    assert "is not valid Python" in refused(module.tool)[0]


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: int) -> int: return x + SECRET\n",
        'def f(x: int) -> int: "Döes."; return SECRET\n',
        'def f(x: int) -> int:\n    """Does.\n\n    More.\n    """\n    return SECRET\n',
        'def f(\n    x: int,\n) -> int:\n    # a\n    "Does."\n    return (\n        SECRET\n)\n',
        "async def f(x: int) -> int:\n    return SECRET ; 'a'  # é\n",
    ],
)
def test_the_signature_of_any_function_can_be_extracted(load: Load, text: str) -> None:
    whole = load(f"# ä\nSECRET = 'key'\n\n\n{text}\n\ndef g() -> None: pass\n").f
    source = tool_source(whole, body=False)
    assert "SECRET" not in source
    head = load(source).f
    assert head.__doc__ == whole.__doc__
    assert get_type_hints(head) == {"x": int, "return": int}


def test_a_signature_needs_no_names_that_only_the_body_uses(load: Load) -> None:
    maker = load(
        "import json\n\nHANDLE = object()\n\n\n"
        "def make(handle):\n"
        "    def f(x: int = 1) -> str:\n"
        '        """Does."""\n'
        "        nonlocal handle\n"
        "        handle = missing(HANDLE, handle, json)\n"
        "    return f\n"
    ).make
    with pytest.raises(
        ToolSourceError, match="line 7: is not self-contained: no binding for nonlocal"
    ):
        tool_source(maker(object()))
    assert load(tool_source(maker(object()), body=False)).f.__defaults__ == (1,)


def test_line_numbers_in_errors_refer_to_the_file(load: Load) -> None:
    module = load(
        "from __future__ import annotations\n\n\n"
        "def f(x: Held) -> int:\n"
        '    """Does."""\n'
        "    return [\n        1,\n    ]\n\n\n"
        "class Held:\n    size: int = len(locals()) or nothing\n"
    ).f
    with pytest.raises(ToolSourceError, match="line 12: uses nothing"):
        tool_source(module, body=False)
