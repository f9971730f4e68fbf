"""Sandboxes in separate processes, of each user and isolation level that the machine supports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from strata.shared.sandbox import Failure, Isolation, RunResult, RunStatus
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox

WORKER = Path(__file__).with_name("worker.py")
ROOT = Path(__file__).parents[3]
NOBODY = 65_534


def readable(path: Path) -> bool:
    """Returns whether every user can read a path."""
    return all(p.stat().st_mode & 0o005 == 0o005 for p in (path, *path.parents))


def interpreter() -> str:
    """Returns a Python that any user can run."""
    own = Path(sys.executable).resolve()
    for path in (own, Path("/usr/bin/python3").resolve()):
        if path.exists() and readable(path):
            return str(path)
    pytest.skip("no Python here can be run by another user")


async def started(config: JailConfig | None = None) -> JailSandbox:
    """Returns a sandbox in the test's process; skips the test if no isolation is available."""
    sandbox = await JailSandbox.start(config)
    if sandbox.isolation is Isolation.NONE:
        await sandbox.close()
        pytest.skip(f"no isolation can be had here: {sandbox.probe.description()}")
    return sandbox


class Worker:
    """A sandbox in another process.

    Attributes:
        scratch: Where it makes the scratch folders of calls without namespaces. Those in the folder
            for temporary files of the machine would be mixed with those of other tests.
    """

    def __init__(self, *, other_user: bool, restricted: bool, **settings: Any) -> None:
        options = {"restricted": restricted, **settings}
        python = sys.executable
        if other_user or restricted:
            options["interpreter"] = python = interpreter()
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if other_user else {}
        self.scratch = Path(tempfile.mkdtemp(prefix="strata-jail-", dir="/tmp"))
        self.scratch.chmod(0o1777)
        self._process = subprocess.Popen(
            [python, "-B", str(WORKER), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                "PATH": "/usr/bin:/bin",
                "TMPDIR": str(self.scratch),
                "SERVICE_SECRET": "hunter2",
                "PYTHONPATH": f"{ROOT}/shared:{ROOT}/services:{ROOT}/clients/python",
            },
            cwd="/",
            **user,  # type: ignore[call-overload]
        )
        started = self._answer()
        self.words: str = started["words"]
        self.level = Isolation(started["level"])

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the worker ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(
        self, source: str, function: str = "f", arguments: Any = None, **fields: Any
    ) -> RunResult:
        assert self._process.stdin is not None
        fields.setdefault("limits", {})
        fields["limits"] = {"wall_seconds": 60.0, **fields["limits"]}
        call = {"source": source, "function": function, **fields}
        call["arguments_json"] = json.dumps(arguments or {})
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        failure = answer.pop("failure")
        return RunResult(
            RunStatus(answer.pop("status")),
            failure=Failure(**failure) if failure else None,
            isolation=Isolation(answer.pop("isolation")),
            **answer,
        )

    def value(self, source: str, arguments: Any = None, **fields: Any) -> Any:
        result = self.run(source, "f", arguments, **fields)
        assert result.status is RunStatus.OK, result
        return json.loads(result.value_json)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(20) == 0
        self._process.stdout.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


SETUPS = {
    "own user, namespaces": (False, False),
    "unprivileged, namespaces": (True, False),
    "own user, landlock": (False, True),
    "unprivileged, landlock": (True, True),
}
