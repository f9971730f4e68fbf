"""The text form of gRPC-Web, whose messages are in base64.

The browser client of the gRPC project streams responses in this form only. `connectrpc` serves the
binary form.
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md
"""

from __future__ import annotations

import base64
import binascii
import re

from starlette.datastructures import MutableHeaders

from strata.gateway.http.scope_headers import header_of, with_header
from strata.shared.http_listener import Application, Receive, Scope, Send

TEXT_TYPE = "application/grpc-web-text"
"""The prefix of the content types of this form."""

_BINARY_TYPE = "application/grpc-web"
_CONTENT_TYPE = "content-type"
_QUARTET = 4
# Encoded parts may be joined, each with its padding.
_PART = re.compile(rb"[^=]+={0,2}")


class GrpcWebText:
    """Passes requests in the text form on in the binary form, and returns responses as text.

    Args:
        application: Answers requests in the binary form.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request in the text form."""
        content_type = header_of(scope, _CONTENT_TYPE.encode()) or TEXT_TYPE
        binary_type = _BINARY_TYPE + content_type.strip()[len(TEXT_TYPE) :]
        await self._application(
            with_header(scope, _CONTENT_TYPE.encode(), binary_type.encode("latin-1")),
            _Decoded(receive),
            _Encoded(send),
        )


class _Decoded:
    """Receives a body in base64 as bytes; at the first invalid character it ends."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._text = b""

    async def __call__(self) -> Scope:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        more_body = message.get("more_body", False)
        # Programs such as `base64` break lines.
        text = self._text + message.get("body", b"").translate(None, b"\r\n")
        whole = len(text) - len(text) % _QUARTET if more_body else len(text)
        self._text = text[whole:]
        try:
            body = b"".join(
                base64.b64decode(part, validate=True) for part in _PART.findall(text[:whole])
            )
        except binascii.Error:
            body, more_body = b"", False
        return {"type": "http.request", "body": body, "more_body": more_body}


class _Encoded:
    """Sends a response of gRPC-Web in base64, each piece for itself; other responses unchanged."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._encodes = False

    async def __call__(self, message: Scope) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            content_type = headers.get(_CONTENT_TYPE, "")
            self._encodes = content_type.startswith(_BINARY_TYPE)
            if self._encodes:
                headers[_CONTENT_TYPE] = TEXT_TYPE + content_type[len(_BINARY_TYPE) :]
                del headers["content-length"]
        elif message["type"] == "http.response.body" and self._encodes:
            message = {**message, "body": base64.b64encode(message.get("body", b""))}
        await self._send(message)
