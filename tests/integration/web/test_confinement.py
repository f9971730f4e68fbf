"""Restrictions of the process that converts pages."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import strata
from child_processes import SOURCE_PATH
from strata.shared.web.fetcher import Fetched
from strata.tool_execution.builtin import page_reader
from strata.tool_execution.builtin.page_reader import PageLimits, PageReader
from strata.tool_execution.builtin.web_texts import HTML
from strata.tool_execution.domain.tools import ToolError

_HARNESS = """
import os, socket, subprocess, sys, ctypes, time
from strata.shared import confinement
def {body}
confinement.take_output()
confinement.die_with(int(sys.argv[1]))
confinement.limit(2, 512 * 1024 * 1024)
confinement.forbid_effects()
try:
    attempt()
except BaseException as error:
    print(type(error).__name__, error, file=sys.stderr)
    sys.exit(3)
"""


async def attempt(body: str) -> tuple[int, str]:
    """Runs code in a confined process; returns its exit code and error output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HARNESS.format(body=f"attempt(): {body}"), str(os.getpid())),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": SOURCE_PATH},
    )
    _, output = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.parametrize(
    "body",
    [
        "socket.socket()",
        "socket.getaddrinfo('example.com', 80)",
        "subprocess.run(['true'])",
        "os.system('true')",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "open('/tmp/written-by-a-page', 'w')",
        "os.open('/tmp/written-by-a-page', os.O_CREAT | os.O_WRONLY)",
        "os.remove('/tmp/nothing')",
        "os.kill(os.getppid(), 0)",
        "ctypes.CDLL('libc.so.6')",
    ],
)
async def test_a_converter_cannot_write_files_or_open_sockets(body: str) -> None:
    code, output = await attempt(body)
    assert (code, output.split(" ")[0]) == (3, "PermissionError"), output


async def test_memory_and_time_are_bounded() -> None:
    code, output = await attempt("bytearray(1024 ** 3)")
    assert (code, output.split()[0]) == (3, "MemoryError")
    code, _ = await attempt("[0 for _ in iter(int, 1)]")
    assert code < 0 or "MemoryError" in _


async def test_harmless_operations_are_allowed() -> None:
    assert (await attempt("open('/etc/hostname').read()"))[0] == 0


async def test_a_child_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sleeping_child.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(strata, "__path__", [*strata.__path__, str(tmp_path / "strata")])
    monkeypatch.setitem(page_reader._CHILDREN, HTML, "sleeping_child")
    reader = PageReader(PageLimits(seconds=1))

    # It uses no processor time, so no time limit of the child ends it.
    async with asyncio.timeout(60):
        with pytest.raises(ToolError, match="longer than 1 seconds"):
            await reader.read(Fetched("http://x/", 200, "text/html", "", b"<p>x", False))


async def test_an_invalid_answer_of_a_child_is_a_readable_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "odd_child.py").write_text("import os\nprint('oops', flush=True)\nos.abort()\n")
    monkeypatch.setattr(strata, "__path__", [*strata.__path__, str(tmp_path / "strata")])
    monkeypatch.setitem(page_reader._CHILDREN, HTML, "odd_child")

    with pytest.raises(ToolError, match="cannot be read"):
        await PageReader().read(
            Fetched("http://x/", 200, "text/html", "", b"<p>x" * 500_000, False)
        )


async def test_a_child_inherits_no_environment_variables_of_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A child process that answers with its environment instead of a page.
    (tmp_path / "spy_child.py").write_text(
        "import json, os, sys\n"
        "sys.stdin.buffer.read()\n"
        "print(json.dumps({'title': '', 'text': json.dumps(dict(os.environ))}))\n"
    )
    monkeypatch.setenv("STRATA_SECRET", "key")
    monkeypatch.setattr(strata, "__path__", [*strata.__path__, str(tmp_path / "strata")])
    monkeypatch.setitem(page_reader._CHILDREN, HTML, "spy_child")

    page = await PageReader().read(Fetched("http://x/", 200, "text/html", "", b"<p>x", False))

    assert "PYTHONPATH" in page.text
    assert "STRATA_SECRET" not in page.text
