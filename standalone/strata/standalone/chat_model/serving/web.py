"""The HTTP side of the local model: a thread for each connection, on loopback only."""

from __future__ import annotations

import contextlib
import hmac
import http.server
import json
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .replies import ChatService, Reply
from .requests import ApiError, ChatRequest, parse_chat

MAX_BODY_BYTES = 8 << 20
KEEP_ALIVE_SECONDS = 5.0
IDLE_SECONDS = 60.0


class ClientGoneError(Exception):
    """The client has disconnected."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: ChatServer
    _last_write = 0.0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Does nothing, because request lines are not logged."""

    def do_GET(self) -> None:
        """Serves the two read-only paths."""
        self._guarded({"/health": self._health, "/v1/models": self._models})

    def do_POST(self) -> None:
        """Serves the two paths that take a body."""
        self._guarded({"/v1/chat/completions": self._chat, "/tokenize": self._tokenize})

    def _guarded(self, routes: Mapping[str, Callable[[], None]]) -> None:
        self._streaming = False
        try:
            self._authenticate()
            routes.get(self.path.partition("?")[0], self._unknown)()
        except ApiError as error:
            self._fail(error)
        except (ClientGoneError, ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:  # noqa: BLE001 (every error is sent to the client)
            sys.stderr.write(f"request failed: {error!r}\n")
            self._fail(ApiError(500, f"{type(error).__name__}: {error}", "internal_error"))

    def _unknown(self) -> None:
        self.close_connection = True  # a body, if there is one, is not read
        raise ApiError(404, f"no {self.command} {self.path}", "not_found")

    def _authenticate(self) -> None:
        authorization = self.headers.get("Authorization", "")
        if not hmac.compare_digest(
            authorization.encode(), f"Bearer {self.server.api_key}".encode()
        ):
            self.close_connection = True  # the body is not read
            raise ApiError(401, "a bearer token is required", "invalid_api_key")

    def _body(self) -> dict[str, Any]:
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            size = -1
        if not 0 <= size <= MAX_BODY_BYTES:
            self.close_connection = True
            raise ApiError(413, f"a body of 0 to {MAX_BODY_BYTES} bytes is required", "bad_size")
        try:
            body = json.loads(self.rfile.read(size))
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {error}", "invalid_json") from error
        if not isinstance(body, dict):
            raise ApiError(400, "the body must be a JSON object", "invalid_json")
        return body

    def _health(self) -> None:
        self._send(200, {"status": "ok"})

    def _models(self) -> None:
        chat = self.server.chat
        meta = {"n_ctx": chat.engine.context_tokens, "tools": False, "json_schema": True}
        entry = {"id": chat.model_id, "object": "model", "created": 0, "owned_by": "strata"}
        self._send(200, {"object": "list", "data": [{**entry, "meta": meta}]})

    def _tokenize(self) -> None:
        content = self._body().get("content")
        if not isinstance(content, str):
            raise ApiError(400, "content must be text", "invalid_value", "content")
        self._send(200, {"tokens": self.server.chat.engine.encode([(content, False)])})

    def _chat(self) -> None:
        request = parse_chat(self._body())
        tokens, reply = self.server.chat.prepare(request)
        if request.stream:
            self._stream(request, tokens, reply)
            return
        text = "".join(self.server.chat.texts(request, tokens, reply, self._require_client))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
        head = self._head(reply, "chat.completion")
        self._send(200, {**head, "choices": [choice], "usage": reply.usage()})

    def _stream(self, request: ChatRequest, tokens: list[int], reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._streaming = True
        head = self._head(reply, "chat.completion.chunk")

        def event(delta: dict[str, str], finish_reason: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
            self._event({**head, "choices": [choice]})

        # Sent before the prompt is processed, which can take longer than a client's timeout for
        # the first byte.
        event({"role": "assistant", "content": ""})
        for text in self.server.chat.texts(request, tokens, reply, self._keep_alive):
            event({"content": text})
        event({}, reply.finish_reason)
        if request.include_usage:
            self._event({**head, "choices": [], "usage": reply.usage()})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _head(self, reply: Reply, kind: str) -> dict[str, Any]:
        model = self.server.chat.model_id
        return {"id": reply.id, "object": kind, "created": reply.created, "model": model}

    def _require_client(self) -> None:
        """Raises ClientGoneError if the client has closed the connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise ClientGoneError

    def _keep_alive(self) -> None:
        self._require_client()
        if time.monotonic() - self._last_write > KEEP_ALIVE_SECONDS:
            self._chunk(b": waiting\n\n")

    def _event(self, data: Mapping[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self._last_write = time.monotonic()

    def _fail(self, error: ApiError) -> None:
        with contextlib.suppress(OSError):
            if self._streaming:  # the status has been sent, so the error is sent as an event
                self.close_connection = True
                self._event(error.body)
                self._chunk(b"")
            else:
                self._send(error.status, error.body)

    def _send(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


class ChatServer(http.server.ThreadingHTTPServer):
    """The listening socket, on loopback only."""

    daemon_threads = True

    def __init__(self, port: int, api_key: str, chat: ChatService) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.api_key = api_key
        self.chat = chat

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing, because broken connections are not logged."""
