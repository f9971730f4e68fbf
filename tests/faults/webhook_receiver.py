"""A receiver of webhooks that runs in a thread, and the settings with which Strata may reach it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

_HELD_S = 60.0


@dataclass(frozen=True)
class Received:
    """A request as it reached the receiver."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def run_id(self) -> str:
        """The run that has ended."""
        return str(json.loads(self.body)["data"]["run_id"])

    @property
    def agent_id(self) -> str:
        """The agent of the run."""
        return str(json.loads(self.body)["data"]["agent_id"])

    @property
    def delivery_id(self) -> str:
        """The delivery, which is the same for all its attempts."""
        return self.headers["webhook-id"]


class WebhookReceiver:
    """Records requests; answers with status 200.

    Attributes:
        received: The requests, in order.
        statuses: Other statuses until `release`, by agent; 0 for requests that are not answered
            before.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.statuses: dict[str, int] = {}
        self._released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver._note(Received(dict(self.headers.items()), body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # The connection of a killed process may be broken.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The URL for a webhook."""
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a Strata that may reach the receiver."""
        return {
            "STRATA_GATEWAY_WEBHOOK_PRIVATE_NETWORKS": '["127.0.0.0/8"]',
            "STRATA_GATEWAY_WEBHOOK_PORTS": f"[{self._server.server_port}]",
        }

    def release(self) -> None:
        """Answers all requests with status 200, also those that it holds."""
        self.statuses.clear()
        self._released.set()
        self._released = threading.Event()

    def of(self, run_id: str) -> list[Received]:
        """Returns the requests about the end of a run."""
        return [received for received in list(self.received) if received.run_id == run_id]

    def _note(self, received: Received) -> int:
        released, status = self._released, self.statuses.get(received.agent_id, 200)
        self.received.append(received)
        if not status:
            released.wait(_HELD_S)
        return status or 200
