"""``run_code``, run by the engine in real jails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from integration.sandbox.jails import Worker, started
from strata.shared.clock import SystemClock
from strata.shared.ids import new_id
from strata.shared.sandbox import MIB, Isolation, Limits, Sandbox, SandboxRun
from strata.tool_execution.builtin.code import OUTPUT_CHARS, VALUE_CHARS, CodeTools
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.domain.tools import CallingAgent, CallOutcome, ToolCall
from strata.tool_execution.execution.engine import CallExecutor
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLER = CallingAgent(new_id("agent"), new_id("conversation"), new_id("run"), "step", "m", "UTC")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[JailSandbox]:
    made = await started(JailConfig(warm=2))
    yield made
    await made.close()


async def run(
    sandbox: Sandbox, code: str, limits: Limits | None = None, **more: Any
) -> tuple[bool, Any]:
    """Runs code; returns whether it succeeded, and its return for the model."""
    tools = CodeTools(sandbox, limits)
    engine = CallExecutor(BUILTIN_TOOLS, [tools], SystemClock(), timeout=60, max_parallel=4)
    call = ToolCall("call", "run_code", json.dumps({"code": code, **more}), "key")
    async with aclosing(engine.run([call], CALLER, frozenset(BUILTIN_TOOLS))) as events:
        (outcome,) = [event async for event in events if isinstance(event, CallOutcome)]
    packed = json.loads(outcome.content)
    assert (packed["status"] == "OK") == outcome.ok
    return outcome.ok, packed["message"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("6 * 7", {"value": "42"}),
        ("x = 'Ö'\nx", {"value": "'Ö'"}),
        ("print('a'); print('b')", {"stdout": "a\nb\n"}),
        (
            "import sys\nprint('out')\nprint('err', file=sys.stderr)\n{1: {2}}",
            {"value": "{1: {2}}", "stdout": "out\n", "stderr": "err\n"},
        ),
        ("def f(n):\n    return n if n < 2 else f(n-1) + f(n-2)\n[f(9)]", {"value": "[34]"}),
        ("from __future__ import annotations\n__name__", {"value": "'__main__'"}),
        ("def f(x: int): ...\nf.__annotations__", {"value": "{'x': <class 'int'>}"}),
        ("import asyncio\nawait asyncio.sleep(0, 'slept')", {"value": "'slept'"}),
        ("import asyncio\nasync def f():\n    return 1\nasyncio.run(f())", {"value": "1"}),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(3)",
            {"value": "P(x=3)"},
        ),
        ("open('f', 'w').write('x')\nopen('f').read()", {"value": "'x'"}),
        ("1\nx = 2", {"message": "The code ran, and printed and returned nothing."}),
        ("import sys\nprint(1)\nsys.exit()", {"stdout": "1\n"}),
        ("print('no line end', end='')", {"stdout": "no line end"}),
    ],
)
async def test_output_and_the_last_value_are_returned(
    sandbox: JailSandbox, code: str, expected: dict[str, str]
) -> None:
    assert await run(sandbox, code) == (True, expected)


async def test_a_traceback_contains_only_lines_of_the_code(sandbox: JailSandbox) -> None:
    code = "import json\nprint('before')\ndef read(t):\n    return json.loads(t)\nread('[')"
    ok, answer = await run(sandbox, code)
    assert not ok
    assert answer["stdout"] == "before\n"
    assert answer["error"]["type"] == "JSONDecodeError"
    assert "Expecting value" in answer["error"]["message"]
    trace = answer["error"]["traceback"]
    assert 'File "<code>", line 5' in trace
    assert 'File "<code>", line 4, in read' in trace
    assert "json.loads(t)" in trace
    assert trace.count("File ") == 2
    for inside in ("_strata", "<tool>", "program", "/usr", "decoder.py"):
        assert inside not in trace


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("x = (1,\n", "SyntaxError", "line 1"),
        ("import sys\nsys.exit('gone wrong')", "SystemExit", "gone wrong"),
        ("import sys\nsys.exit(3)", "SystemExit", "3"),
        ("def f():\n    f()\nf()", "RecursionError", "recursion"),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", "E", "cannot be read"),
        ("class R:\n    def __repr__(self): return 1/0\nR()", "ZeroDivisionError", "division"),
        ("try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e", "KeyError", "k"),
        ("import requests", "ModuleNotFoundError", "requests"),
        ("import socket\nsocket.create_connection(('1.1.1.1', 80))", "PermissionError", "not"),
        ("raise ExceptionGroup('both', [ValueError('a'), TypeError('b')])", "ExceptionGroup", "b"),
    ],
)
async def test_exceptions_are_returned_to_the_model(
    sandbox: JailSandbox, code: str, kind: str, text: str
) -> None:
    ok, answer = await run(sandbox, code)
    assert not ok
    assert answer["error"]["type"] == kind
    assert text in answer["error"]["message"] + answer["error"]["traceback"]


@pytest.mark.parametrize(
    ("code", "limits", "status", "text"),
    [
        ("print('x', flush=True)\nwhile True: pass", {"wall_seconds": 1.0}, "timeout", "1 second"),
        ("x = bytearray(600_000_000)", {"memory_bytes": 512 * MIB}, "memory", "512 MiB"),
        ("while True: print('x' * 1000)", {}, "output", "1 MiB"),
        ("print('x', flush=True)\nimport os\nos._exit(7)", {}, "killed", "exit code 7"),
    ],
)
async def test_a_limit_error_names_the_limit_and_has_the_output(
    sandbox: JailSandbox, code: str, limits: dict[str, Any], status: str, text: str
) -> None:
    ok, answer = await run(sandbox, code, Limits(**limits))
    assert not ok
    assert answer["error"]["type"] == f"stopped: {status}"
    assert text in answer["error"]["message"]
    if "print" in code:
        assert answer["stdout"].startswith("x")


async def test_long_texts_are_truncated_with_a_note(sandbox: JailSandbox) -> None:
    ok, answer = await run(sandbox, "print('a' + 'b' * 100_000 + 'c')\n'v' * 50_000")
    assert ok
    assert len(answer["stdout"]) < OUTPUT_CHARS + 100
    assert answer["stdout"].startswith("ab")
    assert answer["stdout"].endswith("bc\n")
    assert "84,003 characters left out" in answer["stdout"]
    assert len(answer["value"]) < VALUE_CHARS + 100
    assert answer["value"].endswith("[50,002 characters in all]")


async def test_calls_share_no_state(sandbox: JailSandbox) -> None:
    leave = "import builtins, os\nbuiltins.print = None\nopen('left', 'w')\nx = 1\nos.getcwd()"
    look = "import os\nprint(os.listdir('.'))\n'x' in globals()"
    ok, _ = await run(sandbox, leave)
    assert ok
    assert await run(sandbox, look) == (True, {"value": "False", "stdout": "[]\n"})


@pytest.mark.parametrize("language", ["TypeScript", "ruby"])
async def test_other_languages_are_refused(sandbox: JailSandbox, language: str) -> None:
    ok, answer = await run(sandbox, "1", language=language)
    assert not ok
    assert "python" in answer.lower()


def needs_node(sandbox: JailSandbox) -> None:
    """Skips the test if the jail has no Node, or must not start it."""
    if not any(Path(place, "node").exists() for place in ("/usr/bin", "/bin")):
        pytest.skip("no Node in /usr/bin or /bin")
    if sandbox.isolation is not Isolation.NAMESPACES:
        pytest.skip("Node is started only in namespaces")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("[1, 2].map((n) => n * 21)", {"value": "[ 21, 42 ]"}),
        ("console.log('a'); console.error('b')", {"stdout": "a\n", "stderr": "b\n"}),
        ("Promise.resolve('later')", {"value": "'later'"}),
        ("const os = require('os'); typeof os.cpus", {"value": "'function'"}),
        ("console.log(1); process.exit(0)", {"stdout": "1\n"}),
    ],
)
async def test_javascript_is_run_by_node(
    sandbox: JailSandbox, code: str, expected: dict[str, str]
) -> None:
    needs_node(sandbox)
    assert await run(sandbox, code, language="javascript") == (True, expected)


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("function f() {\n  null.x\n}\nconsole.log('x')\nf()", "TypeError", "code.js:2"),
        ("setTimeout(() => { throw new RangeError('late') }, 1)", "RangeError", "late"),
        ("let x = ;", "SyntaxError", "code.js:1"),
        ("process.exit(4)", "Exit", "exit code 4"),
        ("require('child_process').execSync('cat /etc/shadow')", "Error", "No such file"),
        ("new (require('net').Socket)().connect(80, '1.1.1.1')", "Error", "EPERM"),
    ],
)
async def test_javascript_exceptions_are_returned(
    sandbox: JailSandbox, code: str, kind: str, text: str
) -> None:
    needs_node(sandbox)
    ok, answer = await run(sandbox, code, language="javascript")
    assert not ok
    assert answer["error"]["type"] == kind
    assert text in answer["error"]["message"] + answer["error"].get("traceback", "")
    assert "around.js" not in answer["error"].get("traceback", "")
    assert answer.get("stdout", "") == ("x\n" if "console" in code else "")


async def test_without_node_javascript_is_an_error(sandbox: JailSandbox) -> None:
    part = files("strata.tool_execution.builtin").joinpath("code_child.py").read_text("utf-8")
    missing = part.replace('["node",', '["no-such-node",')
    assert missing != part
    arguments = json.dumps({"code": "1", "around": "", "most": 100})
    result = await sandbox.run(SandboxRun(missing, "run_javascript", arguments))
    message = json.loads(result.value_json)["error"]["message"]
    expected = "no Node" if sandbox.isolation is Isolation.NAMESPACES else "no programs"
    assert expected in message


async def test_forged_answers_of_code_are_refused(
    sandbox: JailSandbox,
) -> None:
    frame = "import os, struct\nb = {!r}\nos.write(3, struct.pack('>I', len(b)) + b)\nos._exit(0)"
    for answer in ('{"value": [1]}', '{"value": {"error": 5}}', '{"value": {"value": {}}}', "x"):
        _, value = await run(sandbox, frame.format(answer.encode()))
        assert isinstance(value, dict)


async def test_without_isolation_nothing_runs_and_the_model_gets_an_error() -> None:
    refusing = await JailSandbox.start(JailConfig(minimum=Isolation.MICROVM))
    try:
        ok, answer = await run(refusing, "1")
    finally:
        await refusing.close()
    assert not ok
    assert "cannot be used on this server" in answer
    assert "Nothing was run" in answer


async def test_calls_of_one_reply_run_at_the_same_time(sandbox: JailSandbox) -> None:
    tools = CodeTools(sandbox)
    engine = CallExecutor(BUILTIN_TOOLS, [tools], SystemClock(), timeout=60, max_parallel=4)
    calls = [ToolCall(f"c{n}", "run_code", json.dumps({"code": str(n)}), f"k{n}") for n in range(3)]
    async with aclosing(engine.run(calls, CALLER, frozenset(BUILTIN_TOOLS))) as events:
        kinds = [type(event).__name__ async for event in events]
    assert kinds[:3] == ["Started"] * 3
    assert BUILTIN_TOOLS["run_code"].parallel


async def test_the_code_runs_at_every_available_isolation_level(jail: Worker) -> None:
    part = files("strata.tool_execution.builtin").joinpath("code_child.py").read_text("utf-8")
    result = jail.run(part, "run", {"code": "import math\nmath.pi", "most": 100})
    assert json.loads(result.value_json) == {"value": "3.141592653589793"}
    result = jail.run(part, "run_javascript", {"code": "1", "around": "", "most": 100})
    assert result.value_json, result
    answer = json.loads(result.value_json)
    if jail.level is Isolation.LANDLOCK:
        assert "start no programs" in answer["error"]["message"]
    else:
        assert answer == {} or "no Node" in answer["error"]["message"]
