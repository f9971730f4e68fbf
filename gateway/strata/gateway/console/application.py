"""The routes of the console, and the headers of all of its responses."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from strata.gateway.console.pages import render
from strata.gateway.console.sealing import Sealer
from strata.gateway.console.sessions import Sessions
from strata.gateway.console.sign_in import SignInPages
from strata.gateway.console.sign_in_links import LinkTokens
from strata.gateway.console.views import (
    agents,
    archival,
    blocks,
    chat,
    context,
    files,
    groups,
    keys,
    mcp_servers,
    mcp_sign_in,
    memory_agents,
    projects,
    recall,
    run_events,
    runs,
    schedules,
    tools,
    usage,
)
from strata.gateway.console.visits import SignedIn, ViewRoute
from strata.shared.clock import Clock, SystemClock
from strata.shared.http_listener import Application, Receive, Scope, Send

STATIC = Path(__file__).parent / "static"
VIEWS: tuple[ViewRoute, ...] = (
    *agents.VIEWS,
    *chat.VIEWS,
    *blocks.VIEWS,
    *recall.VIEWS,
    *archival.VIEWS,
    *files.VIEWS,
    *context.VIEWS,
    *runs.VIEWS,
    *run_events.VIEWS,
    *schedules.VIEWS,
    *groups.VIEWS,
    *memory_agents.VIEWS,
    *tools.VIEWS,
    *mcp_servers.VIEWS,
    *mcp_sign_in.VIEWS,
    *keys.VIEWS,
    *projects.VIEWS,
    *usage.VIEWS,
)
"""Every page that needs a session, except for signing out."""

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        " 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # With no-referrer, browsers would send no origin with forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_NOT_STORED = "no-store"
_CHECKED_EACH_TIME = "no-cache"


def console_application(
    channel: grpc.aio.Channel,
    secret: str,
    *,
    max_body_bytes: int,
    started: float,
    clock: Clock | None = None,
) -> Application:
    """Returns the application of the console.

    Args:
        channel: Calls the gateway.
        secret: Encrypts sessions and sign-in links; the same on every replica.
        max_body_bytes: Larger forms are refused.
        started: When this process started, in seconds since 1970.
        clock: Clock of the sessions; by default the system clock.
    """
    clock = clock or SystemClock()
    sealer = Sealer(secret, clock)
    sessions = Sessions(sealer, clock)
    signed_in = SignedIn(channel, sessions, max_body_bytes=max_body_bytes)
    sign_in = SignInPages(signed_in, sessions, LinkTokens(sealer, clock, started))
    views = (*VIEWS, ViewRoute("/sign-out", sign_in.sign_out, "POST"))
    routes = [
        *sign_in.routes(),
        *mcp_sign_in.OPEN_ROUTES,
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
        *(signed_in.route(view) for view in views),
    ]
    application = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    return _WithHeaders(application)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    page = render("http_error.html", status=error.status_code, detail=error.detail, visit=None)
    return HTMLResponse(page, status_code=error.status_code, headers=error.headers)


class _WithHeaders:
    """Adds the headers that restrict what a page may do."""

    def __init__(self, application: Starlette) -> None:
        self._application = application

    @property
    def routes(self) -> list[Route | Mount]:
        """The routes."""
        return [route for route in self._application.routes if isinstance(route, Route | Mount)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        caching = _CHECKED_EACH_TIME if path.startswith("/static/") else _NOT_STORED

        async def send_with_headers(message: Scope) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", caching)
            await send(message)

        await self._application(scope, receive, send_with_headers)
