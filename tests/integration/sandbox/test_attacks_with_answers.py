# ruff: noqa: E501 - sources of tools
"""Attacks with forged answers of calls, and the reported outcomes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from integration.sandbox.attacks import alone, source
from integration.sandbox.jails import Worker
from strata.shared.sandbox import MIB, Isolation, RunStatus


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("os._exit(3)", RunStatus.KILLED, "exit code 3"),
        ("os._exit(0)", RunStatus.KILLED, "exit code 0"),
        ("os._exit(120)", RunStatus.KILLED, "exit code 120"),
        ("os.abort()", RunStatus.KILLED, "SIG"),
        ("ctypes.string_at(0)", RunStatus.KILLED, "SIGSEGV"),
        ("os.close(3)", RunStatus.KILLED, "exit code 0"),
        ("os.closerange(0, 64)", RunStatus.KILLED, "exit code 0"),
        ("os.execv('/usr/bin/true', ['true'])", RunStatus.KILLED, "exit code"),
        ("sys.exit(3)", RunStatus.TOOL_ERROR, "sys.exit(3)"),
        ("sys.exit()", RunStatus.TOOL_ERROR, "sys.exit"),
        ("raise KeyboardInterrupt", RunStatus.TOOL_ERROR, "KeyboardInterrupt"),
        ("f()", RunStatus.TOOL_ERROR, "RecursionError"),
        ("sys.setrecursionlimit(10**9); f()", None, ""),
        ("os.close(3); time.sleep(60)", RunStatus.KILLED, "closed its connection"),
    ],
)
def test_every_end_has_a_clear_status(
    jail: Worker, body: str, status: RunStatus | None, words: str
) -> None:
    limits = {"memory_bytes": 150 * MIB, "wall_seconds": 1.5 if status is None else 50.0}
    result = jail.run(source(f"def f():\n    {body}\n"), limits=limits)
    if status is None:
        # Without a limit of recursion depth, the call reaches one of the other limits.
        ends = {RunStatus.KILLED, RunStatus.TOOL_ERROR, RunStatus.MEMORY, RunStatus.TIMEOUT}
        assert result.status in ends
    else:
        assert result.status is status, result
    message = result.detail + (
        f"{result.failure.type} {result.failure.message}" if result.failure else ""
    )
    assert words in message
    assert message


def test_an_exception_whose_text_raises_is_reported(jail: Worker) -> None:
    body = """
    class Bad(Exception):
        def __str__(self):
            raise SystemExit
        __repr__ = __str__
    def f():
        raise Bad
    """
    result = jail.run(source(body))
    assert result.status is RunStatus.TOOL_ERROR
    assert result.failure
    assert result.failure.type == "Bad"


def test_a_long_failure_is_truncated(jail: Worker) -> None:
    body = """
    class X(Exception):
        pass
    X.__name__ = "N" * 10000
    def f():
        raise X("m" * 1_000_000)
    """
    result = jail.run(source(body))
    assert result.failure
    assert len(result.failure.type) == 100
    assert len(result.failure.message) == 2_000
    assert len(result.failure.traceback) <= 4_100


def test_a_traceback_shows_the_tools_lines_only(jail: Worker) -> None:
    result = jail.run("def g():\n    raise ValueError('no')  # here\ndef f():\n    g()\n")
    assert result.failure
    assert result.failure.message == "no"
    assert "# here" in result.failure.traceback
    assert "program" not in result.failure.traceback


BAD_VALUES = {
    "set": "{1, 2}",
    "object": "object()",
    "bytes": "b'x'",
    "nan": "float('nan')",
    "infinity": "[float('inf')]",
    "cycle": "(lambda a: a.append(a) or a)([])",
    "deep": "eval('[' * 150 + ']' * 150)",
    "very deep": "__import__('functools').reduce(lambda a, _: [a], range(100_000), 1)",
    "half a surrogate": "'\\ud800'",
    "key": "{(1, 2): 3}",
    "function": "len",
    "huge number": "10 ** 10_000",
}


@pytest.mark.parametrize("name", list(BAD_VALUES))
def test_values_that_are_not_json_are_refused(jail: Worker, name: str) -> None:
    result = jail.run(f"def f():\n    return {BAD_VALUES[name]}")
    assert result.status is RunStatus.BAD_RESULT, result
    assert result.value_json == ""
    assert len(result.detail) > 40


def test_return_values_are_converted(jail: Worker) -> None:
    body = """
    import dataclasses, datetime, decimal, enum, uuid
    @dataclasses.dataclass
    class Point:
        x: int
        y: "Point | None" = None
    class Colour(enum.Enum):
        RED = "red"
    class Model:
        def model_dump(self, mode):
            return {"mode": mode}
    def f():
        return [(1, 2), Point(1, Point(2)), Colour.RED, Model(), datetime.date(2026, 1, 2),
                decimal.Decimal("1.10"), uuid.UUID(int=1), None, True, 2**70, "é\\0\\U0001f600"]
    """
    assert jail.value(source(body)) == [
        [1, 2], {"x": 1, "y": {"x": 2, "y": None}}, "red", {"mode": "json"}, "2026-01-02",
        "1.10", "00000000-0000-0000-0000-000000000001", None, True, 2**70, "é\0\U0001f600",
    ]  # fmt: skip


def test_a_large_value_is_refused_and_reported(jail: Worker) -> None:
    result = jail.run("def f():\n    return 'x' * 100_000_000")
    assert result.status is RunStatus.RESULT_TOO_LARGE
    assert "4 MiB" in result.detail
    good = jail.run("def f():\n    return 'é' * 2_000_000")
    assert good.status is RunStatus.OK


def test_nothing_is_unpickled(jail: Worker, tmp_path: Path) -> None:
    mark = Path(f"/var/tmp/strata-pickle-{os.getpid()}")
    body = """
    import pickle
    class Evil:
        def __reduce__(self):
            return (os.system, ("touch MARK",))
    def f():
        os.write(3, pickle.dumps(Evil()))
        return pickle.dumps(Evil()).decode("latin1")
    """
    jail.run(source(body.replace("MARK", str(mark))), limits={"wall_seconds": 1.0})
    assert not mark.exists()


FORGED = {
    "four GiB": (b"\xff\xff\xff\xff", RunStatus.RESULT_TOO_LARGE),
    "nested": (b"\x00\x06\x1a\x80" + b"[" * 400_000, RunStatus.BAD_RESULT),
    "no object": (b"\x00\x00\x00\x01" + b"7", RunStatus.BAD_RESULT),
    "no text": (b"\x00\x00\x00\x02\xff\xfe", RunStatus.BAD_RESULT),
    "infinite": (b"\x00\x00\x00\x0f" + b'{"value":1e999}', RunStatus.BAD_RESULT),
    "constant": (b"\x00\x00\x00\x0d" + b'{"value":NaN}', RunStatus.BAD_RESULT),
    "surrogate": (b"\x00\x00\x00\x12" + b'{"value":"\\ud800"}', RunStatus.BAD_RESULT),
    "two answers": (b"\x00\x00\x00\x13" + b'{"value":1,"bad":2}', RunStatus.BAD_RESULT),
    "locked again": (b"\x00\x00\x00\x0f" + b'{"locked":true}', RunStatus.BAD_RESULT),
    "wrong failure": (b"\x00\x00\x00\x0b" + b'{"error":1}', RunStatus.BAD_RESULT),
    "own value": (b"\x00\x00\x00\x0b" + b'{"value":7}', RunStatus.OK),
}


@pytest.mark.parametrize("name", list(FORGED))
def test_forged_answers_are_refused(jail: Worker, name: str) -> None:
    frame, status = FORGED[name]
    body = f"""
    def f():
        s = socket.socket(fileno=3)
        s.sendall({frame!r})
        time.sleep(20)
    """
    result = jail.run(source(body))
    assert result.status is status, result
    alone(jail)


def test_an_incomplete_answer_ends_at_the_time_limit(jail: Worker) -> None:
    body = """
    def f():
        os.write(3, b"\\x00\\x00\\x10\\x00{")
        time.sleep(60)
    """
    result = jail.run(source(body), limits={"wall_seconds": 0.4})
    assert result.status is RunStatus.TIMEOUT


def test_a_changed_interpreter_does_not_affect_the_next_call(jail: Worker) -> None:
    body = """
    import builtins
    def f():
        builtins.len = lambda _: 666
        json.dumps = lambda *_, **__: "666"
        sys.modules["math"] = None
        os.environ["POISON"] = "1"
        with open("left", "w") as file:
            file.write("secret")
        attempt(lambda: os.chmod(".", 0))
        return 1
    """
    after = """
    def f():
        import math
        return [len([1]), json.dumps(1), math.floor(1.5), "POISON" in os.environ, os.listdir(".")]
    """
    jail.run(source(body))
    assert jail.value(source(after)) == [1, "1", 1, False, []]


def test_random_numbers_differ_between_calls(jail: Worker) -> None:
    body = "import os, random, uuid\ndef f():\n    return [random.random(), os.urandom(4).hex(), str(uuid.uuid4())]"
    first, second, third = (jail.value(body) for _ in range(3))
    assert not set(first) & set(second)
    assert not set(second) & set(third)


def test_a_deep_and_closed_scratch_folder_is_removed(jail: Worker) -> None:
    body = """
    def f():
        for n in range(1500):
            os.mkdir("x" * 200)
            os.chdir("x" * 200)
        open("file", "w").close()
        return 1
    """
    assert jail.value(source(body)) == 1
    alone(jail)
    # Spare processes, which wait for a call, already have their folders.
    left = list(jail.scratch.iterdir())
    assert len(left) < 60
    assert [entry for folder in left for entry in folder.iterdir()] == []


def test_a_call_that_cannot_be_confined_is_refused(jail: Worker) -> None:
    """If a step of the confinement fails, the code of the call must not run."""
    result = jail.run("def f():\n    return 1", limits={"memory_bytes": 2**70})
    assert result.status is RunStatus.REFUSED, result
    assert "could not be restricted" in result.detail


def test_a_call_that_requires_more_isolation_is_refused(jail: Worker) -> None:
    result = jail.run("def f():\n    return 1", minimum=int(Isolation.MICROVM))
    assert result.status is RunStatus.REFUSED
    assert "microvm" in result.detail
    assert jail.level.label in result.detail
    network = jail.run("def f():\n    return 1", hosts=["example.com"])
    assert network.status is RunStatus.REFUSED
    assert "hosts" in network.detail


def test_scripts_functions_and_coroutines_run(jail: Worker) -> None:
    script = jail.run(
        "import sys\nif __name__ == '__main__':\n    print('hello')\n    sys.exit(0)", ""
    )
    assert (script.status, script.value_json, script.stdout) == (RunStatus.OK, "null", "hello\n")
    both = "import asyncio\nasync def f(a, b=2):\n    await asyncio.sleep(0)\n    return a + b"
    assert jail.value(both, {"a": 1}) == 3
    missing = jail.run("x = 1", "f")
    assert missing.failure
    assert "no function 'f'" in missing.failure.message
    syntax = jail.run("def f(:", "f")
    assert syntax.failure
    assert syntax.failure.type == "SyntaxError"
    assert json.loads(jail.run("def f(**k):\n    return k", "f", {"é": [None]}).value_json) == {
        "é": [None]
    }


def test_ordinary_programs_are_started(jail: Worker) -> None:
    body = """
    def f():
        done = subprocess.run(["/usr/bin/env", "printf", "%s", "hi"], capture_output=True, text=True)
        return done.stdout
    """
    result = jail.run(source(body))
    if jail.level is Isolation.NAMESPACES:
        assert result.value_json == '"hi"', result
    else:
        assert result.failure
        assert result.failure.type == "BlockingIOError"
