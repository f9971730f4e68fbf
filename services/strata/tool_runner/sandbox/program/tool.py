"""Runs the code of a tool in the process that `jail` has restricted.

Answers are sent over the socket of the call, as length in four bytes (big endian) and JSON. The
tool's code runs in the same interpreter and can forge them, so the service does not trust them.
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
_UNREADABLE_ERROR = b'{"error":{"type":"Exception","message":"(it cannot be read)","traceback":""}}'
_WARM_UP = {
    "source": """
import typing
def practice(values: list[int], word: str = "") -> dict:
    # Uses common features of tools.
    return {"values": [value + 1 for value in values], "word": f"{word}!"}
""",
    "function": "practice",
    "arguments": {"values": [1, 2, 3], "word": "again"},
    "environment": {},
    "result_bytes": 1_000,
}


def send(connection: socket.socket, message: bytes) -> None:
    """Sends one message; ignores a closed connection."""
    try:
        connection.sendall(struct.pack(">I", len(message)) + message)
    except OSError:
        return


def receive(connection: socket.socket) -> bytes:
    """Receives one message; empty if the connection is closed."""
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
    """Sends questions to the service during a call, one at a time.

    Attributes:
        lock: Held while a question is pending, so that the answer to the call cannot interrupt.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.lock = threading.Lock()
        self._connection = connection
        self._broken = False

    def ask(self, question: object) -> object:
        """Sends a question and waits for the answer.

        Raises:
            TypeError: The question cannot be converted to JSON.
            RuntimeError: The service no longer answers.
        """
        try:
            body = values.encode(question)
        except values.BadResult as error:
            raise TypeError(f"The question must be JSON. {error}") from None
        with self.lock:
            if self._broken:
                raise RuntimeError("No more questions are possible: one was interrupted.")
            # If a signal interrupts this, the late answer must not count for the next question.
            self._broken = True
            send(self._connection, b'{"ask":' + body + b"}")
            answer = receive(self._connection)
            self._broken = not answer
        if not answer:
            raise RuntimeError("The service does not answer.")
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
    exec(compile(source, _FILE, "exec"), module.__dict__)  # noqa: S102 - running code is the purpose
    if not function:
        return None
    if function not in module.__dict__:
        raise NameError(f"The source defines no function {function!r}.")
    value = module.__dict__[function](**arguments)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> object:
    return await value


def _is_success(code: object) -> bool:
    # Checks the type first: it may be an object with a comparison method of the tool.
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
    except BaseException as error:  # noqa: BLE001 - every exception of a tool is reported
        return json.dumps({"error": values.describe(error, _OWN_FRAMES)}).encode()
    if len(body) > request["result_bytes"]:
        return json.dumps({"large": len(body)}).encode()
    return b'{"value":' + body + b"}"


def make_ready(connection: socket.socket) -> None:
    """Prepares the process while it waits for its request.

    Args:
        connection: The connection of the request; if the request is waiting, warm-up is skipped.
    """
    _open_outputs()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if poll.poll(0):
        return
    # Memory pages are copied from the fork server when a call first writes to them, which takes
    # half of the time of a short call. This warm-up call causes the copies earlier.
    _answer(_WARM_UP)
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
    except BaseException:  # noqa: BLE001 - an exception that cannot be described
        answer = _UNREADABLE_ERROR
    for name in ("stdout", "stderr"):
        # A tool may have replaced the streams.
        with contextlib.suppress(BaseException):
            getattr(sys, name).flush()
    # Waits for a question of another thread; after this no question can be asked.
    asker.lock.acquire()
    send(connection, answer)
    # Not sys.exit: threads of the tool must not keep the process alive.
    os._exit(0)
