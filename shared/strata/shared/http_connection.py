"""Connections of HTTP clients, with limits on what comes before the body of a request."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 128 * 1024
"""Maximum number of bytes without the end of a head, or without a byte of the body."""

HEAD_S = 30.0
"""How long the head of a request may take, in seconds."""


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too large or never ends.

    The parser keeps all bytes of an incomplete head, of the extension of a chunk, and of the
    trailers after a chunked body, also of clients without a key.
    """

    _pending_bytes = 0
    _head_deadline: asyncio.TimerHandle | None = None

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
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Notes a piece of the body."""
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Notes the end of the request."""
        self._pending_bytes = 0
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._forget_deadline()
        self._head_deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None
