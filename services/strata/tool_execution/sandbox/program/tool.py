"""Runs the tool: the last that happens in a jailed process, with everything locked.

Answers go over the call's socket, each as its length in four bytes (big endian) and JSON. The
tool's code runs in the same interpreter and can forge them: the service believes nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import linecache
import os
import select
import socket
import struct
import sys
import threading
import types
from typing import Any

from . import settings, values

_FILE = "<tool>"
# Frames of this module above the tool's own: run and _call.
_OWN_FRAMES = 2
_UNTOLD = b'{"error":{"type":"Exception","message":"(it cannot be read)","traceback":""}}'
_PRACTICE = {
    "source": """
import typing
def practice(values: list[int], word: str = "") -> dict:
    # A little of everything.
    return {"values": [value + 1 for value in values], "word": f"{word}!"}
""",
    "function": "practice",
    "arguments": {"values": [1, 2, 3], "word": "again"},
    "environment": {},
    "result_bytes": 1_000,
}


def send(connection: socket.socket, message: bytes) -> None:
    """Sends one answer; nobody listening is no error."""
    try:
        connection.sendall(struct.pack(">I", len(message)) + message)
    except OSError:
        return


def receive(connection: socket.socket) -> bytes:
    """Receives one message; empty when the other side is gone."""
    head = _exactly(connection, 4)
    return _exactly(connection, struct.unpack(">I", head)[0]) if head else b""


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 18))
        if not part:
            return b""
        parts += part
    return bytes(parts)


class Asker:
    """Asks the service in the middle of a call; one question at a time.

    Attributes:
        lock: Is held while a question is under way; the answer to the call must not cut in.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.lock = threading.Lock()
        self._connection = connection
        self._broken = False

    def ask(self, question: object) -> object:
        """Asks and waits for the answer.

        Raises:
            TypeError: The question cannot be said in JSON.
            RuntimeError: Nobody answers any more.
        """
        try:
            body = values.encode(question)
        except values.BadResult as error:
            raise TypeError(f"What is asked must be JSON. {error}") from None
        with self.lock:
            if self._broken:
                raise RuntimeError("Nothing can be asked any more: a question was interrupted.")
            # Whoever breaks off, by a signal, must not have this answer taken for the next one.
            self._broken = True
            send(self._connection, b'{"ask":' + body + b"}")
            answer = receive(self._connection)
            self._broken = not answer
        if not answer:
            raise RuntimeError("Nobody answers.")
        value: object = json.loads(answer)
        return value


def _call(
    source: str, function: str, arguments: dict[str, Any], extra_globals: dict[str, Any]
) -> object:
    module = types.ModuleType("tool" if function else "__main__")
    # Dataclasses, models and type hints look up the module of a class.
    sys.modules[module.__name__] = module
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    module.__dict__.update(extra_globals)
    exec(compile(source, _FILE, "exec"), module.__dict__)  # noqa: S102 - it is what we are for
    if not function:
        return None
    if function not in module.__dict__:
        raise NameError(f"The source defines no function {function!r}.")
    value = module.__dict__[function](**arguments)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> object:
    return await value


def _is_success(code: object) -> bool:
    # Not by comparing first: it may be an object of the tool's.
    return code is None or (type(code) is int and code == 0)


def _answer(request: dict[str, Any], asker: Asker | None = None) -> bytes:
    extra_globals = {request["asks"]: asker.ask} if asker is not None and request["asks"] else {}
    try:
        settings.add_environment(request["environment"])
        value = _call(request["source"], request["function"], request["arguments"], extra_globals)
        body = values.encode(value)
    except values.BadResult as error:
        return json.dumps({"bad": str(error)}).encode()
    except SystemExit as error:
        if not request["function"] and _is_success(error.code):
            return b'{"value":null}'
        return json.dumps({"error": values.describe(error, _OWN_FRAMES)}).encode()
    except BaseException as error:  # noqa: BLE001 - everything a tool raises is told
        return json.dumps({"error": values.describe(error, _OWN_FRAMES)}).encode()
    if len(body) > request["result_bytes"]:
        return json.dumps({"large": len(body)}).encode()
    return b'{"value":' + body + b"}"


def make_ready(connection: socket.socket) -> None:
    """Does what is alike in all calls, while the process waits for its own.

    Args:
        connection: Over which the request comes; if it is there already nobody waits for practice.
    """
    _open_outputs()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if poll.poll(0):
        return
    # What a call touches is copied from the fork server's memory at the first touch: half of the
    # time of a short call. This one of our own has the copies made before.
    _answer(_PRACTICE)
    sys.modules.pop("tool", None)
    linecache.cache.pop(_FILE, None)


def _open_outputs() -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
            encoding="utf-8",
            errors="replace",
            line_buffering=True,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run(connection: socket.socket, body: bytes) -> None:
    """Runs a call, answers, and ends the process."""
    asker = Asker(connection)
    try:
        answer = _answer(json.loads(body), asker)
    except BaseException:  # noqa: BLE001 - one that cannot even be described
        answer = _UNTOLD
    for name in ("stdout", "stderr"):
        # A tool may have put anything there.
        with contextlib.suppress(BaseException):
            getattr(sys, name).flush()
    # A thread that the code has left may be asking; after this nobody can.
    asker.lock.acquire()
    send(connection, answer)
    # Not sys.exit: threads of the tool must not keep the process.
    os._exit(0)
