"""Requests of signed-in people, and the views that answer them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import grpc.aio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.gateway.console.forms import FormFields, read_form
from strata.gateway.console.pages import render
from strata.gateway.console.sessions import Session, Sessions, SessionValues
from strata.gateway.http.calls import metadata_of
from strata.gateway.http.console_path import CONSOLE_PATH
from strata.gateway.http.errors import code_of_status, http_status_of
from strata.gateway.http.keyed_services import KeyedServices
from strata.protocol.errors import (
    PermissionDeniedError,
    Reason,
    StrataError,
    UnauthenticatedError,
)
from strata.protocol.status import code_of
from strata.shared.interceptors.auth import AUTHORIZATION_KEY
from strata.shared.interceptors.observe import REQUEST_ID_KEY, TRACEPARENT_KEY
from strata.shared.scopes import with_included

SIGN_IN_PATH = f"{CONSOLE_PATH}/sign-in"
NEXT_PARAMETER = "next"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"


@dataclass(frozen=True)
class Visit:
    """One request of a signed-in person.

    Attributes:
        request: The request.
        services: The public services, with the key of the person.
        identity: The key and its project.
        csrf_token: The token of the session's forms.
        kept: The values that the browser stores for the session.
        max_form_bytes: Larger forms are refused.
        form: The fields of a form that was sent.
    """

    request: Request
    services: KeyedServices
    identity: admin_pb.WhoAmIResponse
    csrf_token: str
    kept: SessionValues
    max_form_bytes: int
    form: FormFields

    @property
    def by_htmx(self) -> bool:
        """Whether htmx sent the request, and replaces a part of the page with the response."""
        return _by_htmx(self.request)

    def argument(self, name: str) -> str:
        """Returns a parameter of the path."""
        return str(self.request.path_params[name])

    def query(self, name: str) -> str:
        """Returns a parameter of the query; empty if it is missing."""
        return self.request.query_params.get(name, "")

    def may(self, scope: str) -> bool:
        """Returns whether the key has a scope."""
        return scope in with_included(self.identity.api_key.scopes)

    def render(self, template: str, **values: Any) -> str:
        """Returns a template with values, and with those that every page has."""
        return render(
            template,
            visit=self,
            csrf_token=self.csrf_token,
            here=self.request.url.path,
            **values,
        )

    def page(self, template: str, *, status: int = HTTPStatus.OK, **values: Any) -> Response:
        """Returns a page, or a part of one."""
        return HTMLResponse(self.render(template, **values), status_code=status)

    def go_to(self, path: str) -> Response:
        """Sends the browser to another page.

        Args:
            path: Path below the console, such as ``/agents``.
        """
        target = CONSOLE_PATH + path
        if self.by_htmx:
            return Response(status_code=HTTPStatus.NO_CONTENT, headers={"hx-redirect": target})
        return RedirectResponse(target, status_code=HTTPStatus.SEE_OTHER)


View = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ViewRoute:
    """A view and its path below the console.

    Attributes:
        path: Such as ``/agents/{agent_id}``.
        view: Answers the requests.
        method: GET for a view that changes nothing; all others need the token of the session.
    """

    path: str
    view: View
    method: str = "GET"


class SignedIn:
    """Lets only signed-in people reach views.

    Each request checks the key, even if its view makes no call.

    Args:
        channel: Calls the gateway.
        sessions: The sessions.
        max_body_bytes: Larger forms are refused.
    """

    def __init__(
        self, channel: grpc.aio.Channel, sessions: Sessions, *, max_body_bytes: int
    ) -> None:
        self._channel = channel
        self._sessions = sessions
        self._max_body_bytes = max_body_bytes

    def route(self, route: ViewRoute) -> Route:
        """Returns the route of a view."""

        async def endpoint(request: Request) -> Response:
            return await self._respond(request, route)

        return Route(route.path, endpoint, methods=[route.method])

    def services(self, request: Request, api_key: str) -> KeyedServices:
        """Returns the services with a key, and with the ids of a request's trace."""
        trace = {
            name: value
            for name in (REQUEST_ID_KEY, TRACEPARENT_KEY)
            if (value := request.headers.get(name)) is not None
        }
        return KeyedServices(
            self._channel, metadata_of({AUTHORIZATION_KEY: f"Bearer {api_key}", **trace})
        )

    async def _respond(self, request: Request, route: ViewRoute) -> Response:
        session = self._sessions.of(request)
        if session is None:
            return sign_in_first(request)
        services = self.services(request, session.api_key)
        visit: Visit | None = None
        try:
            identity = await services.admin.WhoAmI(admin_pb.WhoAmIRequest())
            token = self._sessions.csrf_token(session)
            session_values = self._sessions.values(request, session)
            visit = Visit(
                request,
                services,
                identity,
                token,
                session_values,
                self._max_body_bytes,
                FormFields(),
            )
            if route.method != "GET":
                visit = replace(visit, form=await self._form(request, route, session))
            response = await route.view(visit)
        except UnauthenticatedError:
            response = sign_in_first(request)
            self._sessions.end(response)
            return response
        except StrataError as error:
            return error_response(request, error, visit)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        self._sessions.renew(request, response, session)
        return response

    async def _form(self, request: Request, route: ViewRoute, session: Session) -> FormFields:
        """Returns the form of a request, once its token is checked.

        The body of a PUT, and any body that is not a form, is not read; the token is in a header.

        Raises:
            PermissionDeniedError: The token is missing or belongs to another session.
            InvalidArgumentError: The form is too large or has too many fields.
        """
        token = request.headers.get(CSRF_HEADER, "")
        # A view of PUT stores the body, regardless of its type.
        form = FormFields()
        if route.method != "PUT":
            form = await read_form(request, self._max_body_bytes)
        token = token or form.text(CSRF_FIELD)
        if not self._sessions.is_csrf_token(session, token) or not of_same_origin(request):
            raise PermissionDeniedError(
                "This form is not from your session. Load the page again, and repeat what you did.",
                reason=Reason.CREDENTIALS_INVALID,
            )
        return form


async def form_of(request: Request, max_bytes: int) -> FormFields:
    """Returns the form of a request that belongs to no session.

    Raises:
        PermissionDeniedError: A page of another origin sent it.
        InvalidArgumentError: It is too large or has too many fields.
    """
    if not of_same_origin(request, required=True):
        raise PermissionDeniedError(
            "This form is not from the console. Open the console, and sign in there.",
            reason=Reason.CREDENTIALS_INVALID,
        )
    return await read_form(request, max_bytes, with_files=False)


def of_same_origin(request: Request, *, required: bool = False) -> bool:
    """Returns whether a page of the same host and port sent a request.

    Args:
        request: The request.
        required: False to accept requests of programs, which do not name their origin.
    """
    origin = request.headers.get("origin")
    if origin is None:
        return not required
    # The scheme differs behind a proxy that ends TLS.
    return origin.partition("://")[2] == request.headers.get("host", "")


def sign_in_first(request: Request) -> Response:
    """Sends the browser to the sign-in page, and from there back."""
    current_address = request.url.path
    if request.method == "GET" and not _by_htmx(request):
        current_address += f"?{request.url.query}" if request.url.query else ""
    else:
        host = request.headers.get("host", " ")
        current_address = request.headers.get("hx-current-url", "").partition(host)[2]
    target = (
        f"{SIGN_IN_PATH}?{NEXT_PARAMETER}={quote(current_address)}"
        if current_address
        else SIGN_IN_PATH
    )
    if _by_htmx(request):
        return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"hx-redirect": target})
    return RedirectResponse(target, status_code=HTTPStatus.SEE_OTHER)


def error_response(request: Request, error: StrataError, visit: Visit | None) -> Response:
    """Returns the page for a failed call; for htmx the notice that it shows."""
    status = http_status_of(code_of_status(code_of(error)))
    if _by_htmx(request):
        return HTMLResponse(
            render("parts/error_notice.html", error=error),
            status_code=status,
            headers={"hx-retarget": "#notices", "hx-reswap": "innerHTML"},
        )
    page = (
        visit.render("error.html", error=error)
        if visit is not None
        else render("error.html", error=error, visit=None, csrf_token="", here="")
    )
    return HTMLResponse(page, status_code=status)


def _by_htmx(request: Request) -> bool:
    return "hx-request" in request.headers
