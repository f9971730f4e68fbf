"""Connections of HTTP clients, with limits on heads and on pauses of clients."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 128 * 1024
"""Maximum number of bytes without the end of a head, or without a byte of the body."""

HEAD_S = 30.0
"""How long the head of a request may take, in seconds."""

BODY_PAUSE_S = 60.0
"""How long a client may send nothing of a body that has not ended, in seconds: as for uploads."""

READ_PAUSE_S = 60.0
"""How long a client may read nothing of a response that waits for it, in seconds."""


class _Flow(FlowControl):
    """Pauses and resumes a connection, and records when reading was resumed."""

    resume_time = 0.0
    """When reading was last resumed after a pause, by the clock of the loop, in seconds."""

    def resume_reading(self) -> None:
        """Reads from the client again, if reading was paused."""
        if self.read_paused:
            self.resume_time = asyncio.get_running_loop().time()
        super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed if a request is too large or never ends, or no response is read.

    The parser keeps all bytes of an incomplete head, of the extension of a chunk, and of the
    trailers after a chunked body, and the application those of an incomplete body, also of clients
    without a key. A client that reads no more would keep its connection and the stream that it
    follows indefinitely.
    """

    flow: _Flow
    _pending_bytes = 0
    _deadline: asyncio.TimerHandle | None = None
    _read_deadline: asyncio.TimerHandle | None = None
    # Bytes of responses that the client had not taken when it was last looked at.
    _unread_bytes = 0
    # When the last byte of the body arrived, or its head; by the clock of the loop.
    _body_time = 0.0

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection."""
        self._forget_deadline()
        self._forget_read_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads bytes of requests."""
        self._pending_bytes += len(data)
        super().data_received(data)
        if self._pending_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.logger.warning("The head of an HTTP request is too large.")
            self.send_400_response(f"The head of the request has more than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Notes the first byte of a request."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Notes the end of the head."""
        self._pending_bytes = 0
        self._forget_deadline()
        self._expect_body()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Notes a piece of the body."""
        self._pending_bytes = 0
        self._body_time = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Notes the end of the request."""
        self._pending_bytes = 0
        self._forget_deadline()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Notes that the client reads more slowly than the application writes."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Records that the client has read most of the buffered data."""
        super().resume_writing()
        self._forget_read_deadline()

    def on_response_complete(self) -> None:
        """Records the end of a response; the client may not have read all of it yet."""
        super().on_response_complete()
        self._expect_reading()

    def _expect_reading(self) -> None:
        self._forget_read_deadline()
        self._unread_bytes = self.transport.get_write_buffer_size()
        if self._unread_bytes:
            self._read_deadline = self.loop.call_later(READ_PAUSE_S, self._check_reading)

    def _check_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread_bytes:
            self._expect_reading()
        elif self.flow.write_paused or self.cycle.response_complete:
            # Closing would wait until the client has read the rest.
            self.transport.abort()

    def _forget_read_deadline(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None

    def _expect_head(self) -> None:
        self._forget_deadline()
        self._deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def _expect_body(self) -> None:
        self._body_time = self.loop.time()
        self._deadline = self.loop.call_later(BODY_PAUSE_S, self._check_body)

    def _check_body(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:
            # The client waits for the server.
            self._body_time = now
        # After a pause of the server, the client has the whole time again.
        left = max(self._body_time, self.flow.resume_time) + BODY_PAUSE_S - now
        if left <= 0:
            self.transport.close()
        else:
            self._deadline = self.loop.call_later(left, self._check_body)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
