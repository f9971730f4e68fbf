"""Signing in and out: the only pages that need no session."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.gateway.console.pages import render
from strata.gateway.console.sessions import Sessions
from strata.gateway.console.sign_in_links import LINK_PATH, TOKEN_PARAMETER, LinkTokens
from strata.gateway.console.visits import (
    NEXT_PARAMETER,
    SIGN_IN_PATH,
    SignedIn,
    Visit,
    error_response,
    form_of,
)
from strata.gateway.http.console_path import CONSOLE_PATH
from strata.gateway.http.errors import code_of_status, http_status_of
from strata.protocol.errors import StrataError
from strata.protocol.status import code_of

_KEY_FIELD = "api_key"
_MAX_FORM_BYTES = 16 * 1024


class SignInPages:
    """The pages for signing in.

    Args:
        signed_in: Checks keys.
        sessions: The sessions.
        links: The tokens of sign-in links.
    """

    def __init__(self, signed_in: SignedIn, sessions: Sessions, links: LinkTokens) -> None:
        self._signed_in = signed_in
        self._sessions = sessions
        self._links = links

    def routes(self) -> list[Route]:
        """Returns the routes, which need no session."""
        path = SIGN_IN_PATH.removeprefix(CONSOLE_PATH)
        return [
            Route(path, self._show, methods=["GET"]),
            Route(path, self._take_key, methods=["POST"]),
            Route(LINK_PATH, self._take_link, methods=["GET"]),
        ]

    async def _show(self, request: Request) -> Response:
        return _page(next_path=_next_path(request.query_params.get(NEXT_PARAMETER, "")))

    async def _take_key(self, request: Request) -> Response:
        try:
            form = await form_of(request, _MAX_FORM_BYTES)
        except StrataError as error:
            return error_response(request, error, None)
        api_key, next_path = form.text(_KEY_FIELD).strip(), _next_path(form.text(NEXT_PARAMETER))
        if not api_key:
            return _page("Enter an API key.", next_path, HTTPStatus.BAD_REQUEST)
        return await self._begin(request, api_key, next_path)

    async def _take_link(self, request: Request) -> Response:
        api_key = self._links.take(request.query_params.get(TOKEN_PARAMETER, ""))
        if api_key is None:
            problem = (
                "This link has been used or has expired. Sign in with an API key, or get a new link"
                " with the command strata console."
            )
            return _page(problem, status=HTTPStatus.FORBIDDEN)
        return await self._begin(request, api_key, "")

    async def _begin(self, request: Request, api_key: str, next_path: str) -> Response:
        if not api_key.isascii() or not api_key.isprintable():
            return _page("The API key is not valid.", next_path, HTTPStatus.UNAUTHORIZED)
        services = self._signed_in.services(request, api_key)
        try:
            await services.admin.WhoAmI(admin_pb.WhoAmIRequest())
        except StrataError as error:
            return _page(error.message, next_path, http_status_of(code_of_status(code_of(error))))
        response = RedirectResponse(
            next_path or f"{CONSOLE_PATH}/", status_code=HTTPStatus.SEE_OTHER
        )
        self._sessions.begin(request, response, api_key)
        return response

    async def sign_out(self, _: Visit) -> Response:
        """Ends the session of this browser."""
        response = RedirectResponse(SIGN_IN_PATH, status_code=HTTPStatus.SEE_OTHER)
        self._sessions.end(response)
        return response


def _page(problem: str = "", next_path: str = "", status: int = HTTPStatus.OK) -> Response:
    page = render("sign_in.html", problem=problem, next_path=next_path, visit=None)
    return HTMLResponse(page, status_code=status)


def _next_path(path: str) -> str:
    """Returns a path of the console to go to; empty for anything else."""
    inside = path.startswith(f"{CONSOLE_PATH}/") and path.isprintable() and "\\" not in path
    return path if inside and not path.startswith(SIGN_IN_PATH) else ""
