"""Connections of HTTP clients, with limits on heads and on pauses in bodies of requests."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 128 * 1024
"""Maximum number of bytes without the end of a head, or without a byte of the body."""

HEAD_S = 30.0
"""How long the head of a request may take, in seconds."""

BODY_PAUSE_S = 60.0
"""How long a client may send nothing of a body that has not ended, in seconds: as for uploads."""


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too large or a request never ends.

    The parser keeps all bytes of an incomplete head, of the extension of a chunk, and of the
    trailers after a chunked body, and the application those of an incomplete body, also of clients
    without a key.
    """

    _pending_bytes = 0
    _deadline: asyncio.TimerHandle | None = None
    # When the last byte of the body arrived, or its head; by the clock of the loop.
    _body_time = 0.0

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection."""
        self._forget_deadline()
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
        left = self._body_time + BODY_PAUSE_S - now
        if left <= 0:
            self.transport.close()
        else:
            self._deadline = self.loop.call_later(left, self._check_body)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
