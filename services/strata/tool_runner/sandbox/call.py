"""One call in a jailed process: sends the request, reads answer and output, waits for the end.

Everything that is read from the process is limited in size.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable

from strata.shared.json_text import PACKED_JSON_DEPTH, JsonTextError, parse_json
from strata.shared.sandbox import ASK, RunResult, RunStatus, SandboxRun
from strata.tool_runner.domain.proxy import Proxy
from strata.tool_runner.sandbox import frames, outcome
from strata.tool_runner.sandbox.forkserver import Child, Exit
from strata.tool_runner.sandbox.outcome import CallStatus

# Prefix of a message with a question; other messages are the answer to the call.
_QUESTION_PREFIX = b'{"ask":'
# Bytes of an answer besides its value.
_ENVELOPE_BYTES = 16_384
_CHUNK_BYTES = 1 << 16
# Size of the length prefix of a message.
_LENGTH_BYTES = 4
# Larger answers are parsed on a thread.
_PARSED_ON_LOOP_BYTES = 1 << 18
# Output over the limit is truncated. A process that prints more than this multiple of the limit is
# killed.
_FLOOD_FACTOR = 8
# Time until the end of a killed process must be reported.
_REAP_S = 5.0
# Time that a process has to exit after its answer, before it is killed.
_EXIT_S = 0.02
# Time to read the answer of a process that has exited: it is already in the socket.
_LAST_ANSWER_S = 1.0


class _Output:
    """Standard output or standard error of the process."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.kept = bytearray()
        self.total = 0
        self._limit = limit

    @property
    def cut(self) -> bool:
        return self.total > self._limit

    @property
    def flooding(self) -> bool:
        return self.total > self._limit * _FLOOD_FACTOR + _CHUNK_BYTES

    def read(self) -> bool:
        """Reads available data once; returns False at the end."""
        try:
            data = os.read(self.descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.total += len(data)
        self.kept += data[: max(self._limit - len(self.kept), 0)]
        return bool(data)

    def drain(self) -> None:
        """Reads the rest of the output that a process left in the pipe when it ended."""
        while not self.flooding:
            before = self.total
            if not self.read() or self.total == before:
                return


class JailedCall:
    """A call in a jailed process.

    Args:
        child: The process.
        run: The call.
        proxy: The proxy to its hosts; None for a call without hosts.
    """

    def __init__(self, child: Child, run: SandboxRun, proxy: Proxy | None = None) -> None:
        self._child = child
        self._proxy = proxy
        self._run = run
        self._loop = asyncio.get_running_loop()
        limits = run.limits
        self._outputs = [
            _Output(child.output, limits.output_bytes),
            _Output(child.errors, limits.output_bytes),
        ]
        self._flood: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> RunResult:
        """Runs the call to its end.

        When it returns, raises or is cancelled, no process of the call is left.
        """
        began = time.monotonic()
        child = self._child
        for output in self._outputs:
            self._loop.add_reader(output.descriptor, self._read, output)
        talk = asyncio.ensure_future(self._talk())
        verdict = None
        try:
            verdict = await self._wait(talk)
        finally:
            talk.cancel()
            try:
                end = await self._end(answered=verdict is not None and talk.done())
            finally:
                if self._proxy is not None:
                    await self._proxy.close()
        if verdict is None:
            verdict = outcome.ended(end, self._run.limits)
        for output in self._outputs:
            output.drain()
        return RunResult(
            verdict.status,
            value_json=verdict.value_json,
            failure=verdict.failure,
            detail=verdict.detail or self._truncation_note(),
            stdout=outcome.decode(bytes(self._outputs[0].kept)),
            stderr=outcome.decode(bytes(self._outputs[1].kept)),
            isolation=child.server.isolation,
            wall_seconds=time.monotonic() - began,
            cpu_seconds=end.cpu_seconds,
            peak_bytes=end.peak_bytes,
        )

    def _truncation_note(self) -> str:
        truncated_streams = [
            name
            for name, output in zip(
                ("Standard output", "Standard error"), self._outputs, strict=True
            )
            if output.cut
        ]
        limit = outcome.size(self._run.limits.output_bytes)
        return " ".join(f"{name} was cut at {limit}." for name in truncated_streams)

    def _read(self, output: _Output) -> None:
        if not output.read():
            self._loop.remove_reader(output.descriptor)
        elif output.flooding:
            self._loop.remove_reader(output.descriptor)
            if not self._flood.done():
                self._flood.set_result(None)

    async def _wait(self, talk: asyncio.Future[CallStatus | None]) -> CallStatus | None:
        """Returns the verdict, or None if the process ended without an answer."""
        limits = self._run.limits
        exited = self._child.exited
        waiting: set[asyncio.Future[object]] = {talk, exited, self._flood}  # type: ignore[arg-type]
        await asyncio.wait(
            waiting, timeout=limits.wall_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if exited.done() and not talk.done():
            # The answer may still be in the socket.
            await asyncio.wait({talk}, timeout=_LAST_ANSWER_S)
        if talk.done():
            return talk.result() or await self._status_without_answer()
        if self._flood.done():
            limit = outcome.size(limits.output_bytes)
            detail = f"It printed more than {_FLOOD_FACTOR} times the limit of {limit}."
            return CallStatus(RunStatus.OUTPUT, detail=detail)
        if exited.done():
            return None
        detail = f"It did not end within {limits.wall_seconds:.3g} seconds."
        return CallStatus(RunStatus.TIMEOUT, detail=detail)

    async def _status_without_answer(self) -> CallStatus | None:
        """Returns the verdict of a process that closed its connection; None if it has ended."""
        await asyncio.wait({self._child.exited}, timeout=_LAST_ANSWER_S)
        if self._child.exited.done():
            return None
        return CallStatus(RunStatus.KILLED, detail="It closed its connection without an answer.")

    async def _end(self, *, answered: bool) -> Exit:
        """Kills the process if necessary, and waits for its end."""
        child = self._child
        for output in self._outputs:
            self._loop.remove_reader(output.descriptor)
        try:
            if answered:
                # It is about to exit, which is faster than killing it.
                await asyncio.wait({child.exited}, timeout=_EXIT_S)
        finally:
            child.server.kill(child)
        if child.exited.done():
            return child.exited.result()
        waiting = asyncio.ensure_future(asyncio.wait({child.exited}, timeout=_REAP_S))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await waiting
            raise
        if child.exited.done():
            return child.exited.result()
        return Exit(-9, reason="its end was not reported")

    async def _talk(self) -> CallStatus | None:
        """Sends the request and reads the answer; None if the process ends first."""
        try:
            return await self._converse()
        except OSError:
            return None

    async def _converse(self) -> CallStatus | None:
        body = self._request()
        connection = self._child.connection
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # A process that failed to lock itself may have ended; its reason is in the socket.
            await self._loop.sock_sendall(connection, body)
        if self._proxy is not None:
            first = await self._start_proxy(self._proxy)
        else:
            first = await self._frame(_ENVELOPE_BYTES)
        if first is None:
            return None
        if first != b'{"locked":true}':
            detail = first.decode("utf-8", "replace")[:500]
            return CallStatus(
                RunStatus.REFUSED, detail=f"The process could not be restricted: {detail}"
            )
        limits = self._run.limits
        # The jail's program does not escape characters; escaped ones would take up to six bytes.
        max_bytes = limits.result_bytes + _ENVELOPE_BYTES
        answer = await self._frame(max_bytes)
        while answer and self._run.answerer is not None and answer.startswith(_QUESTION_PREFIX):
            try:
                question = json.dumps(parse_json(answer)["ask"])
            except JsonTextError:
                # The process can send anything. An invalid question counts as an invalid answer.
                break
            was_sent, answer = await self._answer_question(self._run.answerer(question), max_bytes)
            if not was_sent:
                break
        if answer is None:
            return None
        if not answer:
            return outcome.too_large(limits)
        if len(answer) > _PARSED_ON_LOOP_BYTES:
            return await asyncio.to_thread(outcome.verdict_of, answer, limits)
        return outcome.verdict_of(answer, limits)

    async def _answer_question(
        self, answering: Awaitable[str], max_bytes: int
    ) -> tuple[bool, bytes | None]:
        """Answers a question; returns whether the answer was sent, and the next message.

        Code that is interrupted while it waits continues without the answer. Its next message is
        then the answer to the call.
        """
        answer = asyncio.ensure_future(answering)
        next_message = asyncio.ensure_future(self._frame(max_bytes))
        try:
            await asyncio.wait({answer, next_message}, return_when=asyncio.FIRST_COMPLETED)
            if next_message.done():
                return False, next_message.result()
            packed = frames.packed(answer.result())
            await self._loop.sock_sendall(self._child.connection, packed)
            return True, await next_message
        finally:
            answer.cancel()
            next_message.cancel()
            await asyncio.gather(answer, next_message, return_exceptions=True)

    async def _start_proxy(self, proxy: Proxy) -> bytes | None:
        """Starts the proxy on the socket that the jail sends; returns the next message."""
        head, listener = await self._listener()
        if listener is None:
            # The message contains the reason for the missing socket.
            length = _ENVELOPE_BYTES + 1
            if len(head) == _LENGTH_BYTES:
                length = struct.unpack(">I", head)[0]
            return None if length > _ENVELOPE_BYTES else await self._exactly(length)
        try:
            await self._exactly(struct.unpack(">I", head)[0])
        except BaseException:
            listener.close()
            raise
        await proxy.serve(listener)
        return await self._frame(_ENVELOPE_BYTES)

    async def _listener(self) -> tuple[bytes, socket.socket | None]:
        """Returns the length of the first message, and the socket that came with it."""
        connection = self._child.connection
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        # The tool has not run yet, so the message comes from the jail.
        head, descriptors, _, _ = socket.recv_fds(
            connection, _LENGTH_BYTES, 1, socket.MSG_CMSG_CLOEXEC
        )
        return head, socket.socket(fileno=descriptors[0]) if descriptors else None

    def _request(self) -> bytes:
        run = self._run
        request = {
            "source": run.source,
            "function": run.function,
            "arguments": json.loads(run.arguments_json or "{}"),
            "environment": dict(run.environment),
            "result_bytes": run.limits.result_bytes,
            "asks": ASK if run.answerer is not None else "",
        }
        return frames.framed(request)

    async def _frame(self, max_bytes: int) -> bytes | None:
        """Returns a message: None at the end of the stream, empty if it exceeds `max_bytes`."""
        head = await self._exactly(_LENGTH_BYTES)
        if head is None:
            return None
        (length,) = struct.unpack(">I", head)
        return b"" if length > max_bytes else await self._exactly(length)

    async def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = await self._loop.sock_recv(
                self._child.connection, min(_CHUNK_BYTES, count - len(parts))
            )
            if not part:
                return None
            parts += part
        return bytes(parts)


def check(run: SandboxRun) -> str:
    """Returns why a call is invalid; empty if it is valid.

    Checks only what the jail cannot handle. Other errors are reported by the tool.
    """
    for name, value in run.environment.items():
        if not name or "=" in name or "\0" in name + value or not _is_text(name + value):
            return f"{name!r} cannot be an environment variable."
    try:
        arguments = parse_json(run.arguments_json or "{}", max_depth=PACKED_JSON_DEPTH)
    except JsonTextError:
        return "The arguments are not JSON."
    if not isinstance(arguments, dict):
        return "The arguments are not a JSON object."
    for name in run.limits.not_positive():
        return f"The limit {name} must be above zero."
    return ""


def _is_text(text: str) -> bool:
    """Returns whether a text has no lone surrogates, which an environment variable cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
