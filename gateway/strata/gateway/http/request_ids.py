"""The id of each HTTP request, in its response and in the logs of its calls."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders

from strata.gateway.http.scope_headers import header_of, with_header
from strata.shared.http_listener import Application, Receive, Scope, Send
from strata.shared.interceptors.observe import REQUEST_ID_KEY, request_id_of

_HEADER = REQUEST_ID_KEY.encode()


class RequestIds:
    """Gives each request an id, unless its client chose one.

    All calls of the gateway for one request have its id.

    Args:
        application: Answers the requests, and passes their id on to its calls.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request_id = request_id_of(header_of(scope, _HEADER))

        async def send_with_id(message: Scope) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_KEY] = request_id
            await send(message)

        await self._application(
            with_header(scope, _HEADER, request_id.encode()), receive, send_with_id
        )
