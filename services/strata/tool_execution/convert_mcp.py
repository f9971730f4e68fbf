"""Between the messages of McpService and the domain; checks what is asked of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.shared.ids import new_id
from strata.shared.redaction import Redactor
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.url_guard import parse_url
from strata.tool_execution.convert import tool_to_proto
from strata.tool_execution.convert_registry import REQUEST_ID, Violations, secret_name_problem
from strata.tool_execution.domain.mcp import (
    DEFAULT_CALLS,
    DEFAULT_TIMEOUT_S,
    ClientCredentials,
    McpServer,
    McpTool,
    OAuthClient,
    SignIn,
    ToolState,
    Transport,
)
from strata.tool_execution.domain.registry import Request
from strata.tool_execution.domain.tools import Tool

MAX_NAME = 24
MAX_TIMEOUT_S = 600
MAX_CALLS = 32
MAX_ENTRIES = 32
MAX_ARGUMENTS = 64
MAX_VALUE = 4_096
MAX_CLIENT_ID = 512
MAX_SCOPE = 1_000
MAX_REDIRECT = 500
MAX_ANSWER = 4_096
_NAME = re.compile(r"[a-z](?:_?[a-z0-9-])*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# As RFC 6749 has it.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*")
_ANSWER = re.compile(r"[\x21-\x7e]+")
_REDIRECT = re.compile(
    r"(http://(127\.0\.0\.1|\[::1\]):[0-9]{1,5}|https://[A-Za-z0-9.:\[\]-]+)(/[!$-;=@-Z_a-z~]*)?"
)
# What the protocol and the connection need themselves.
_OUR_HEADERS = frozenset(
    {
        *("host", "content-length", "content-type", "content-encoding", "transfer-encoding"),
        *("connection", "upgrade", "te", "trailer", "accept", "accept-encoding", "expect"),
        *("mcp-session-id", "mcp-protocol-version", "last-event-id", "proxy-authorization"),
    }
)
_SECRET_HEADERS = frozenset({"authorization", "cookie", "x-api-key", "api-key"})
_TRANSPORTS = {
    pb.MCP_TRANSPORT_STDIO: Transport.STDIO,
    pb.MCP_TRANSPORT_SSE: Transport.SSE,
    pb.MCP_TRANSPORT_STREAMABLE_HTTP: Transport.STREAMABLE_HTTP,
}
_WIRE_TRANSPORTS = {transport: wire for wire, transport in _TRANSPORTS.items()}
_STATES = {
    ToolState.APPROVED: pb.MCP_TOOL_STATE_APPROVED,
    ToolState.CHANGED: pb.MCP_TOOL_STATE_CHANGED,
    ToolState.QUARANTINED: pb.MCP_TOOL_STATE_QUARANTINED,
    ToolState.GONE: pb.MCP_TOOL_STATE_GONE,
}


def to_new_server(request: pb.AddMcpServerRequest) -> tuple[McpServer, Request]:
    """Returns the server that a request describes, with a new id.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    found = Violations()
    found.unless(
        bool(REQUEST_ID.fullmatch(request.request_id)),
        "request_id",
        "must be at most 128 printable ASCII characters",
    )
    wire = request.server
    transport = _TRANSPORTS.get(wire.transport)
    found.unless(transport is not None, "server.transport", "must be STDIO, SSE or STREAMABLE_HTTP")
    found.unless(
        len(wire.name) <= MAX_NAME and bool(_NAME.fullmatch(wire.name)),
        "server.name",
        f'must be at most {MAX_NAME} small letters, digits, "-" and single "_", beginning with a'
        ' letter and not ending in "_"',
    )
    server = _checked(
        wire, new_id("mcp_server"), wire.name, transport or Transport.STREAMABLE_HTTP, found
    )
    text = json.dumps(
        [server.name, server.configuration, server.enabled, server.call_timeout], sort_keys=True
    )
    return server, Request(request.request_id, hashlib.sha256(text.encode()).hexdigest())


def to_changed_server(request: pb.UpdateMcpServerRequest, before: McpServer) -> McpServer:
    """Returns a server as it is to be.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    found = Violations()
    wire = request.server
    found.unless(
        wire.name in ("", before.name), "server.name", "stays what it is; add another server"
    )
    found.unless(
        wire.transport in (pb.MCP_TRANSPORT_UNSPECIFIED, _WIRE_TRANSPORTS[before.transport]),
        "server.transport",
        "stays what it is; add another server",
    )
    return _checked(wire, before.id, before.name, before.transport, found)


def server_to_proto(
    server: McpServer,
    tools: Iterable[Tool] = (),
    quarantined: Mapping[str, str] | None = None,
    *,
    with_credentials: bool,
) -> pb.McpServer:
    """Returns the wire form of a server.

    Args:
        server: It.
        tools: Its usable tools.
        quarantined: Reasons by name of the tools that cannot be used.
        with_credentials: Whether values that are named like credentials are shown.
    """
    redactor = Redactor({} if with_credentials else server.plain_credentials)
    wire = pb.McpServer(
        id=server.id,
        name=server.name,
        transport=_WIRE_TRANSPORTS[server.transport],
        command=[redactor.text(argument) for argument in server.command],
        url=redactor.text(server.url),
        header_secrets=server.header_secrets,
        environment_secrets=server.environment_secrets,
        call_timeout_seconds=server.call_timeout,
        healthy=server.healthy,
        error=server.error,
        tools=[tool_to_proto(tool) for tool in tools],
        quarantined_tools=quarantined or {},
        environment=redactor.value(dict(server.environment)),
        headers=redactor.value(dict(server.headers)),
        bearer_secret=server.bearer_secret,
        client_credentials=_credentials_to_proto(server.client_credentials),
        oauth=server.oauth is not None,
        oauth_client=_oauth_to_proto(server.oauth),
        sign_in=_sign_in_to_proto(server.sign_in),
        disabled=not server.enabled,
        max_concurrent_calls=server.max_calls,
    )
    for name in ("last_contact_time", "create_time", "update_time"):
        time = getattr(server, name)
        if time is not None:
            getattr(wire, name).FromDatetime(time)
    return wire


def tool_of_server_to_proto(tool: McpTool) -> pb.McpTool:
    """Returns the wire form of what is known of a tool."""
    approved = tool.approved or ("", None)
    shown = tool.state is not ToolState.QUARANTINED
    return pb.McpTool(
        name=tool.name,
        tool_name=tool.tool_name,
        state=_STATES[tool.state],
        reason=tool.reason,
        description=tool.description,
        parameters_json=json.dumps(tool.parameters, ensure_ascii=False) if shown else "",
        version=tool.digest,
        approved_description=approved[0],
        approved_parameters_json=json.dumps(approved[1], ensure_ascii=False)
        if approved[1] is not None
        else "",
    )


def _checked(
    wire: pb.McpServer, server_id: str, name: str, transport: Transport, found: Violations
) -> McpServer:
    if transport is Transport.STDIO:
        _check_program(wire, found)
    else:
        _check_http(wire, found)
    timeout, calls = wire.call_timeout_seconds, wire.max_concurrent_calls
    found.unless(
        0 <= timeout <= MAX_TIMEOUT_S,
        "server.call_timeout_seconds",
        f"must be 0 to {MAX_TIMEOUT_S}",
    )
    found.unless(
        0 <= calls <= MAX_CALLS, "server.max_concurrent_calls", f"must be 0 to {MAX_CALLS}"
    )
    found.refuse()
    return McpServer(
        id=server_id,
        name=name,
        transport=transport,
        command=tuple(wire.command),
        environment=dict(wire.environment),
        environment_secrets=dict(wire.environment_secrets),
        url=wire.url.strip(),
        headers=dict(wire.headers),
        header_secrets=dict(wire.header_secrets),
        bearer_secret=wire.bearer_secret,
        client_credentials=_to_credentials(wire),
        oauth=_to_oauth(wire),
        enabled=not wire.disabled,
        call_timeout=timeout or DEFAULT_TIMEOUT_S,
        max_calls=calls or DEFAULT_CALLS,
    )


def _check_program(wire: pb.McpServer, found: Violations) -> None:
    for field in ("url", "headers", "header_secrets", "bearer_secret"):
        found.unless(not getattr(wire, field), f"server.{field}", "is not for stdio")
    none = not wire.HasField("client_credentials")
    found.unless(none, "server.client_credentials", "is not for stdio")
    found.unless(not wire.oauth, "server.oauth", "is not for stdio")
    found.unless(not wire.HasField("oauth_client"), "server.oauth_client", "is not for stdio")
    found.unless(
        0 < len(wire.command) <= MAX_ARGUMENTS and bool(wire.command[0].strip()),
        "server.command",
        f"must be a program and at most {MAX_ARGUMENTS - 1} arguments",
    )
    for index, argument in enumerate(wire.command[:MAX_ARGUMENTS]):
        found.unless(
            len(argument) <= MAX_VALUE and "\0" not in argument,
            f"server.command[{index}]",
            f"must have at most {MAX_VALUE} characters, no NUL among them",
        )
    _check_map(wire.environment, "environment", found, _VARIABLE)
    _check_map(wire.environment_secrets, "environment_secrets", found, _VARIABLE, secrets=True)
    both = sorted(set(wire.environment) & set(wire.environment_secrets))
    found.unless(not both, "server.environment", "names a variable that a secret sets, too")


def _check_http(wire: pb.McpServer, found: Violations) -> None:
    for field in ("command", "environment", "environment_secrets"):
        found.unless(not getattr(wire, field), f"server.{field}", "is only for stdio")
    try:
        parse_url(wire.url)
    except ForbiddenUrlError as error:
        found.add("server.url", f"cannot be used: {error.message}")
    _check_map(wire.headers, "headers", found, _HEADER)
    _check_map(wire.header_secrets, "header_secrets", found, _HEADER, secrets=True)
    for name, value in wire.headers.items():
        found.unless(
            bool(_HEADER_VALUE.fullmatch(value)),
            f'server.headers["{name[:100]}"]',
            "must be printable ASCII",
        )
        found.unless(
            name.lower() not in _SECRET_HEADERS,
            f'server.headers["{name[:100]}"]',
            "is a secret: store it with PutSecret and name it in header_secrets or bearer_secret",
        )
    names = [name.lower() for name in (*wire.headers, *wire.header_secrets)]
    names += ["authorization"] * bool(wire.bearer_secret)
    found.unless(len(set(names)) == len(names), "server.headers", "names a header twice")
    ours = sorted(_OUR_HEADERS.intersection(names))
    found.unless(not ours, "server.headers", "names one that the connection sets itself")
    if wire.bearer_secret:
        problem = secret_name_problem(wire.bearer_secret)
        found.unless(not problem, "server.bearer_secret", problem)
    if wire.HasField("client_credentials"):
        found.unless(
            "authorization" not in names,
            "server.client_credentials",
            "cannot be used together with bearer_secret or an Authorization header",
        )
        _check_client(wire.client_credentials, "client_credentials", wire.url, found)
    if wire.oauth:
        found.unless(
            "authorization" not in names and not wire.HasField("client_credentials"),
            "server.oauth",
            "cannot be used together with client_credentials, bearer_secret or an Authorization"
            " header",
        )
    if wire.HasField("oauth_client"):
        found.unless(wire.oauth, "server.oauth_client", "is of use only with oauth")
        _check_oauth(wire.oauth_client, wire.url, found)


def _check_oauth(given: pb.McpOAuthClient, url: str, found: Violations) -> None:
    place = "server.oauth_client"
    found.unless(
        bool(given.issuer) or not given.client_id, f"{place}.issuer", "is needed with client_id"
    )
    found.unless(
        bool(given.client_id) or not given.client_secret,
        f"{place}.client_id",
        "is needed with client_secret",
    )
    if given.issuer:
        _check_issuer(given.issuer, f"{place}.issuer", url, found)
    if given.client_id:
        _check_client_id(given.client_id, place, found)
    if given.client_secret:
        problem = secret_name_problem(given.client_secret)
        found.unless(not problem, f"{place}.client_secret", f"names a secret that {problem}")
    _check_scope(given.scope, place, found)


def _check_client(given: pb.McpClientCredentials, field: str, url: str, found: Violations) -> None:
    place = f"server.{field}"
    _check_issuer(given.issuer, f"{place}.issuer", url, found)
    _check_client_id(given.client_id, place, found)
    problem = secret_name_problem(given.client_secret)
    found.unless(not problem, f"{place}.client_secret", f"names a secret that {problem}")
    _check_scope(given.scope, place, found)


def _check_issuer(issuer: str, place: str, url: str, found: Violations) -> None:
    try:
        parse_url(issuer)
    except ForbiddenUrlError as error:
        found.add(place, f"cannot be used: {error.message}")
    found.unless(not set("?#") & set(issuer), place, "must have no query and no fragment")
    # Whoever protects the server's traffic must not send the client's secret in the clear.
    clear = issuer.lower().startswith("http:") and url.lower().startswith("https:")
    found.unless(not clear, place, "must begin with https, as the server's URL does")


def _check_client_id(client_id: str, place: str, found: Violations) -> None:
    found.unless(
        len(client_id) <= MAX_CLIENT_ID and bool(_HEADER_VALUE.fullmatch(client_id)),
        f"{place}.client_id",
        f"must be at most {MAX_CLIENT_ID} printable ASCII characters",
    )


def _check_scope(scope: str, place: str, found: Violations) -> None:
    found.unless(
        not scope or (len(scope) <= MAX_SCOPE and bool(_SCOPE.fullmatch(scope))),
        f"{place}.scope",
        f"must be scopes separated by single spaces, at most {MAX_SCOPE} characters",
    )


def to_redirect(uri: str) -> str:
    """Returns where a browser is to be sent back to.

    Raises:
        InvalidArgumentError: That is neither this machine nor a place with TLS.
    """
    found = Violations()
    found.unless(
        len(uri) <= MAX_REDIRECT and bool(_REDIRECT.fullmatch(uri)),
        "redirect_uri",
        "must be http with a loopback address, a port and a path, or an https URL, at most"
        f" {MAX_REDIRECT} characters without query and fragment",
    )
    found.refuse()
    return uri


def check_answer(request: pb.CompleteMcpSignInRequest) -> None:
    """Checks what a browser came back with.

    Raises:
        InvalidArgumentError: It is nothing that comes of a sign-in.
    """
    found = Violations()
    for field, needed in (("state", True), ("code", True), ("issuer", False)):
        value = getattr(request, field)
        found.unless(
            len(value) <= MAX_ANSWER and (bool(_ANSWER.fullmatch(value)) or not (needed or value)),
            field,
            f"must be at most {MAX_ANSWER} printable ASCII characters",
        )
    found.refuse()


def _to_oauth(wire: pb.McpServer) -> OAuthClient | None:
    if not wire.oauth:
        return None
    given = wire.oauth_client
    return OAuthClient(given.issuer, given.client_id, given.client_secret, given.scope)


def _oauth_to_proto(given: OAuthClient | None) -> pb.McpOAuthClient | None:
    if given is None:
        return None
    return pb.McpOAuthClient(
        issuer=given.issuer,
        client_id=given.client_id,
        client_secret=given.client_secret,
        scope=given.scope,
    )


def _sign_in_to_proto(given: SignIn | None) -> pb.McpSignIn | None:
    if given is None:
        return None
    wire = pb.McpSignIn(principal=given.principal, issuer=given.issuer, problem=given.problem)
    wire.sign_in_time.FromDatetime(given.time)
    return wire


def _to_credentials(wire: pb.McpServer) -> ClientCredentials | None:
    if not wire.HasField("client_credentials"):
        return None
    given = wire.client_credentials
    return ClientCredentials(given.issuer, given.client_id, given.client_secret, given.scope)


def _credentials_to_proto(given: ClientCredentials | None) -> pb.McpClientCredentials | None:
    if given is None:
        return None
    return pb.McpClientCredentials(
        issuer=given.issuer,
        client_id=given.client_id,
        client_secret=given.client_secret,
        scope=given.scope,
    )


def _check_map(
    given: Mapping[str, str],
    field: str,
    found: Violations,
    key: re.Pattern[str],
    *,
    secrets: bool = False,
) -> None:
    found.unless(
        len(given) <= MAX_ENTRIES, f"server.{field}", f"has more than {MAX_ENTRIES} entries"
    )
    for name, value in list(given.items())[:MAX_ENTRIES]:
        place = f'server.{field}["{name[:100]}"]'
        found.unless(bool(key.fullmatch(name)), place, "is no name of that kind")
        if secrets:
            problem = secret_name_problem(value)
            found.unless(not problem, place, f"names a secret that {problem}")
        else:
            found.unless(
                len(value) <= MAX_VALUE and "\0" not in value,
                place,
                f"must have at most {MAX_VALUE} characters, no NUL among them",
            )
