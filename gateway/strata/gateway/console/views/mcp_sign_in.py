"""Signing in to an MCP server through OAuth: begin, return, finish, sign out.

The browser comes back from the page of another site, so it does not send the cookie of the session,
which is `SameSite=Strict`. `returned` therefore needs no session, reads no stored data and calls
nothing: its page sends the browser on to `finish`. The browser sends the cookie with that request,
since it comes from a page of this site. `finish` accepts only the state with which this session
began the sign-in. The API is called by the form of that page, which carries the token of the
session.
"""

from __future__ import annotations

from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.gateway.console.pages import render
from strata.gateway.console.sessions import origin_of
from strata.gateway.console.views.mcp_servers import server_of
from strata.gateway.console.visits import ViewRoute, Visit
from strata.gateway.http.console_path import CONSOLE_PATH
from strata.protocol.errors import FailedPreconditionError, InvalidArgumentError, Reason
from strata.shared.one_line import clipped

_KEPT = "mcp_sign_in"
_LIFETIME_S = 600.0
_ANSWER = ("code", "state", "iss", "error")
_MAX_ANSWER_CHARS = 4096
_ERROR_CHARS = 200
_SCHEMES = ("https", "http")
_RETURN_PATH = "/mcp/{mcp_server_id}/sign-in/return"


async def begin(visit: Visit) -> Response:
    """Begins a sign-in, and shows which authorization server will ask the person.

    The page has a link to the authorization server instead of a redirect: the content security
    policy forbids that a form redirects to another site.
    """
    server_id = visit.argument("mcp_server_id")
    back = origin_of(visit.request) + CONSOLE_PATH + _RETURN_PATH.format(mcp_server_id=server_id)
    request = pb.BeginMcpSignInRequest(mcp_server_id=server_id, redirect_uri=back)
    server = await server_of(visit)
    try:
        sign_in = await visit.services.mcp.BeginMcpSignIn(request)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            "A sign-in cannot return to this address. Open the console over https or at"
            " http://127.0.0.1 with the port, and sign in there.",
            violations=error.violations,
        ) from error
    if urlsplit(sign_in.authorization_url).scheme not in _SCHEMES:
        raise FailedPreconditionError(
            "The authorization server names an address that no browser can open.",
            reason=Reason.MCP_SIGN_IN_FAILED,
        )
    response = visit.page("mcp/sign_in.html", server=server, begun=sign_in)
    visit.kept.put(response, _KEPT, f"{server_id} {sign_in.state}", _LIFETIME_S)
    return response


async def returned(request: Request) -> Response:
    """Sends a browser that comes back from the authorization server on to `finish`."""
    answer = {
        name: request.query_params.get(name, "")[:_MAX_ANSWER_CHARS]
        for name in _ANSWER
        if name in request.query_params
    }
    path = request.url.path.removesuffix("/return") + "/finish"
    page = render("mcp/returned.html", target=f"{path}?{urlencode(answer)}", visit=None)
    return HTMLResponse(page)


async def finish(visit: Visit) -> Response:
    """Shows what the authorization server answered, with the form that finishes the sign-in."""
    server = await server_of(visit)
    _check_state(visit, visit.query("state"))
    return visit.page(
        "mcp/finish.html",
        server=server,
        refusal=clipped(visit.query("error"), _ERROR_CHARS),
        answer={name: visit.query(name) for name in ("state", "code", "iss")},
    )


async def complete(visit: Visit) -> Response:
    """Finishes a sign-in with the parameters with which the browser returned."""
    server_id, form = visit.argument("mcp_server_id"), visit.form
    _check_state(visit, form.text("state"))
    request = pb.CompleteMcpSignInRequest(
        mcp_server_id=server_id,
        state=form.text("state"),
        code=form.text("code"),
        issuer=form.text("iss"),
    )
    await visit.services.mcp.CompleteMcpSignIn(request)
    response = visit.go_to(f"/mcp/{server_id}")
    visit.kept.remove(response, _KEPT)
    return response


async def sign_out(visit: Visit) -> Response:
    """Forgets the tokens of a server."""
    server_id = visit.argument("mcp_server_id")
    await visit.services.mcp.ForgetMcpSignIn(pb.ForgetMcpSignInRequest(mcp_server_id=server_id))
    return visit.go_to(f"/mcp/{server_id}")


def _check_state(visit: Visit, state: str) -> None:
    """Checks that a sign-in was begun in this session.

    Otherwise another site could make a person finish the sign-in of an attacker, and the agents of
    the project would act with the attacker's account.

    Raises:
        FailedPreconditionError: It was begun elsewhere, or too long ago.
    """
    if not state or visit.kept.get(_KEPT) != f"{visit.argument('mcp_server_id')} {state}":
        raise FailedPreconditionError(
            "This sign-in was not begun in this browser, or more than ten minutes ago. Begin it"
            " again on the page of the MCP server.",
            reason=Reason.MCP_SIGN_IN_FAILED,
        )


OPEN_ROUTES = (Route(_RETURN_PATH, returned, methods=["GET"]),)
"""The route to which browsers are redirected after a sign-in; it needs no session."""
VIEWS = (
    ViewRoute("/mcp/{mcp_server_id}/sign-in", begin, "POST"),
    ViewRoute("/mcp/{mcp_server_id}/sign-in/finish", finish),
    ViewRoute("/mcp/{mcp_server_id}/sign-in/finish", complete, "POST"),
    ViewRoute("/mcp/{mcp_server_id}/sign-out", sign_out, "POST"),
)
