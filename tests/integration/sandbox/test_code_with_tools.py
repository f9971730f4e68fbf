"""Code that calls tools, in real jails: nested calls and attacks on the answering process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from integration.sandbox.jails import started
from strata.protocol.errors import UnavailableError
from strata.shared.clock import SystemClock
from strata.shared.ids import new_id
from strata.shared.sandbox import Isolation, Limits, RunStatus, SandboxRun
from strata.tool_execution.builtin.code import CodeTools
from strata.tool_execution.builtin.code_with_tools import MAX_CALLS, CodeWithTools, NestedReturn
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.domain.tools import CallingAgent, CallOutcome, ToolCall
from strata.tool_execution.execution.engine import CallExecutor
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

CODE = "run_code_with_tools"
CALLER = CallingAgent(new_id("agent"), new_id("conversation"), new_id("run"), "step", "m", "UTC")
TOOLS = {"add": ["a", "b"], "a-dash": [], "print": ["x"], "fails": []}


class Asked:
    """Answers calls of code."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.waiting = asyncio.Event()
        self.left = 0

    async def ask(self, parent_id: str, name: str, arguments: str) -> NestedReturn:
        assert parent_id == "call"
        values = json.loads(arguments)
        self.calls.append((name, values))
        if name == "hangs":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left += 1
        if name == "gone":
            raise UnavailableError("Nobody is there.")
        if name == "fails":
            return NestedReturn(error="It fails: ä.")
        return NestedReturn(json.dumps(values["a"] + values["b"] if name == "add" else values))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[JailSandbox]:
    made = await started(JailConfig(warm=2, parallel=1))
    yield made
    await made.close()


async def run(
    sandbox: JailSandbox, code: str, asked: Asked | None = None, wall: float = 30.0
) -> tuple[bool, Any]:
    """Runs code; returns whether it succeeded, and its return for the model."""
    limits = replace(Limits(), wall_seconds=wall)
    nesting = CodeWithTools(sandbox, asked or Asked(), TOOLS, limits)
    engine = CallExecutor(
        BUILTIN_TOOLS, [CodeTools(sandbox)], SystemClock(), timeout=60, max_parallel=4
    )
    call = ToolCall("call", CODE, json.dumps({"code": code}), "key")
    events = engine.run([call], CALLER, frozenset(BUILTIN_TOOLS), more=[nesting])
    async with aclosing(events):
        (outcome,) = [event async for event in events if isinstance(event, CallOutcome)]
    return outcome.ok, json.loads(outcome.content)["message"]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("add(1, 2)", "3"),
        ("add(1, b=2)", "3"),
        ("add(b='b', a='ä')", "'äb'"),
        ("call_tool('a-dash', name={'k': [None, True]})", "{'name': {'k': [None, True]}}"),
        ("[add(n, n) for n in range(3)]", "[0, 2, 4]"),
        ("import dataclasses as d\n@d.dataclass\nclass P:\n    x: int\ncall_tool('p', p=P(1))",
         "{'p': {'x': 1}}"),
        ("import asyncio\nasync def f():\n    return add(1, 1)\nawait f()", "2"),
        (("from threading import Thread\nresult = []\n"
         "all = [Thread(target=lambda n=n: result.append(add(n, n))) for n in range(5)]\n"
         "[t.start() for t in all]\n[t.join() for t in all]\nsorted(result)"), "[0, 2, 4, 6, 8]"),
        ("try:\n    fails()\nexcept ToolError as error:\n    result = str(error)\nresult",
         "'It fails: ä.'"),
        ("try:\n    add(1, 2, 3)\nexcept TypeError as error:\n    result = str(error)\nresult",
         "'add() takes a, b'"),
        ("try:\n    add(1, a=2)\nexcept TypeError as error:\n    result = str(error)\nresult",
         "\"add() got multiple values for argument 'a'\""),
        (("try:\n    add({1}, 2)\nexcept TypeError as error:\n    result = str(error)\n"
         "result.startswith('The question must be JSON.')"), "True"),
        ("add.__name__", "'add'"),
    ],
)  # fmt: skip
async def test_tools_can_be_called_as_functions(
    sandbox: JailSandbox, code: str, value: str
) -> None:
    ok, answer = await run(sandbox, code)
    assert ok, answer
    assert answer["value"] == value


async def test_builtins_stay_available_and_tool_calls_are_counted(sandbox: JailSandbox) -> None:
    asked = Asked()
    ok, answer = await run(sandbox, "print(add(1, 2))\nadd(3, 4)\nfails()", asked)
    assert not ok
    assert answer["stdout"] == "3\n"
    assert answer["tool_calls"] == "add: 2 ok, fails: 1 failed"
    assert (answer["error"]["type"], answer["error"]["message"]) == ("ToolError", "It fails: ä.")
    assert "line 3" in answer["error"]["traceback"]
    assert [name for name, _ in asked.calls] == ["add", "add", "fails"]


async def test_an_interrupted_nested_call_does_not_get_the_return_of_the_next(
    sandbox: JailSandbox,
) -> None:
    code = """
import signal
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    call_tool("hangs")
except Late:
    signal.setitimer(signal.ITIMER_REAL, 0)
add(1, 2)
"""
    ok, answer = await run(sandbox, code)
    assert not ok
    assert "one was interrupted" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("while True:\n    try:\n        add(1, 2)\n    except ToolError: pass",
         f"it called tools {MAX_CALLS} times"),
        ("call_tool('gone')", "Nobody is there."),
        # Code can change the module around it, so messages from there are not trusted either.
        ("call_tool.__globals__['_strata_ask'](7)", "'error'"),
        ("call_tool.__globals__['_strata_ask']({'name': 1, 'arguments': []})", "'error'"),
        ("call_tool('add', a='x' * 300_000, b='')", "longer than 262,144 characters"),
        ("call_tool('x' * 300)", "needs the name of a tool"),
        ("import os\nos.write(3, b'\\0\\0\\0\\x08{\"ask\":x')\nimport time\ntime.sleep(9)",
         "cannot be used"),
        ("import os\nos.write(3, b'\\xff\\xff\\xff\\xff{\"ask\":')\nimport time\ntime.sleep(9)",
         "larger than"),
        ("import os\nos.close(3)\nadd(1, 2)", ""),
    ],
)  # fmt: skip
async def test_invalid_nested_calls_fail_only_in_the_code(
    sandbox: JailSandbox, code: str, words: str
) -> None:
    asked = Asked()
    _, answer = await run(sandbox, code, asked)
    assert words in str(answer), answer
    assert len(asked.calls) <= MAX_CALLS
    ok, answer = await run(sandbox, "add(1, 1)")
    assert (ok, answer["value"]) == (True, "2")


async def test_timeout_ends_code_that_waits_for_a_nested_call(sandbox: JailSandbox) -> None:
    asked = Asked()
    ok, answer = await run(sandbox, "print('on')\ncall_tool('hangs')", asked, wall=1.0)
    assert not ok
    assert "did not end within 1 seconds" in answer["error"]["message"]
    assert answer["stdout"] == "on\n"
    assert asked.left == 1


async def test_cancelling_code_cancels_its_nested_call(sandbox: JailSandbox) -> None:
    asked = Asked()
    task = asyncio.create_task(run(sandbox, "call_tool('hangs')", asked))
    await asyncio.wait_for(asked.waiting.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asked.left == 1


async def test_code_with_tools_does_not_hold_the_slots_of_its_nested_calls(
    sandbox: JailSandbox,
) -> None:
    """The sandbox has one slot, which the nested call needs."""

    class Running(Asked):
        async def ask(self, parent_id: str, name: str, arguments: str) -> NestedReturn:
            result = await sandbox.run(SandboxRun("def f():\n    return 7\n", "f"))
            assert result.status is RunStatus.OK
            return NestedReturn(result.value_json)

    async with asyncio.timeout(60):
        ok, answer = await run(sandbox, "call_tool('f')", Running())
    assert (ok, answer["value"]) == (True, "7")


async def test_without_isolation_nothing_runs_and_an_error_is_returned() -> None:
    refusing = await JailSandbox.start(JailConfig(minimum=Isolation.MICROVM))
    asked = Asked()
    try:
        ok, answer = await run(refusing, "add(1, 2)", asked)
    finally:
        await refusing.close()
    assert not ok
    assert f"{CODE} cannot be used on this server" in answer
    assert asked.calls == []
