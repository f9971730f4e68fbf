"""Converts messages of McpService between the wire and the domain; checks the requests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.shared.checks import Checks
from strata.shared.convert.enums import EnumTable
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.redaction import Redactor
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.url_guard import parse_url
from strata.tool_execution.convert.execution import tool_to_proto
from strata.tool_execution.convert.tools import secret_name_problem
from strata.tool_execution.domain.mcp import (
    DEFAULT_CALLS,
    DEFAULT_TIMEOUT_S,
    ClientCredentials,
    CompletedSignIn,
    McpServer,
    McpTool,
    OAuthClient,
    ToolState,
    Transport,
)
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
# The syntax of RFC 6749, section 3.3.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*")
_ANSWER = re.compile(r"[\x21-\x7e]+")
_REDIRECT = re.compile(
    r"(http://(127\.0\.0\.1|\[::1\]):[0-9]{1,5}|https://[A-Za-z0-9.:\[\]-]+)(/[!$-;=@-Z_a-z~]*)?"
)
# Headers that the MCP client and the HTTP connection set.
_RESERVED_HEADERS = frozenset(
    {
        *("host", "content-length", "content-type", "content-encoding", "transfer-encoding"),
        *("connection", "upgrade", "te", "trailer", "accept", "accept-encoding", "expect"),
        *("mcp-session-id", "mcp-protocol-version", "last-event-id", "proxy-authorization"),
    }
)
_SECRET_HEADERS = frozenset({"authorization", "cookie", "x-api-key", "api-key"})
_TRANSPORTS = EnumTable(pb.McpTransport, Transport)
_STATES = EnumTable(pb.McpToolState, ToolState)


def to_new_server(request: pb.AddMcpServerRequest) -> tuple[McpServer, RequestKey]:
    """Returns the server that a request describes, with a new id.

    Raises:
        InvalidArgumentError: Fields are wrong; the error names all of them.
    """
    checks = Checks()
    checks.request_id(request.request_id)
    wire = request.server
    transport = _TRANSPORTS.from_proto.get(wire.transport)
    checks.unless(
        transport is not None, "server.transport", "must be STDIO, SSE or STREAMABLE_HTTP"
    )
    checks.unless(
        len(wire.name) <= MAX_NAME and bool(_NAME.fullmatch(wire.name)),
        "server.name",
        f'must be at most {MAX_NAME} lower-case letters, digits, "-" and single "_", beginning with'
        ' a letter and not ending in "_"',
    )
    server = _checked(
        wire, new_id("mcp_server"), wire.name, transport or Transport.STREAMABLE_HTTP, checks
    )
    text = json.dumps(
        [server.name, server.configuration, server.enabled, server.call_timeout], sort_keys=True
    )
    return server, RequestKey(request.request_id, hashlib.sha256(text.encode()).hexdigest())


def to_changed_server(request: pb.UpdateMcpServerRequest, before: McpServer) -> McpServer:
    """Returns a server with the new values of a request; name and transport stay as before.

    Raises:
        InvalidArgumentError: Fields are wrong; the error names all of them.
    """
    checks = Checks()
    wire = request.server
    checks.unless(
        wire.name in ("", before.name), "server.name", "cannot be changed; add another server"
    )
    checks.unless(
        wire.transport in (pb.MCP_TRANSPORT_UNSPECIFIED, _TRANSPORTS.to_proto[before.transport]),
        "server.transport",
        "cannot be changed; add another server",
    )
    return _checked(wire, before.id, before.name, before.transport, checks)


def server_to_proto(
    server: McpServer,
    tools: Iterable[Tool] = (),
    quarantined: Mapping[str, str] | None = None,
    *,
    with_credentials: bool,
) -> pb.McpServer:
    """Returns the wire form of a server.

    Args:
        server: The server.
        tools: Its usable tools.
        quarantined: Why tools cannot be used, by tool name.
        with_credentials: Whether values with names of credentials are shown or redacted.
    """
    redactor = Redactor({} if with_credentials else server.plain_credentials)
    wire = pb.McpServer(
        id=server.id,
        name=server.name,
        transport=_TRANSPORTS.to_proto[server.transport],
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
    """Returns the wire form of a server's tool and its approval state."""
    approved = tool.approved or ("", None)
    is_usable = tool.state is not ToolState.QUARANTINED
    return pb.McpTool(
        name=tool.name,
        tool_name=tool.tool_name,
        state=_STATES.to_proto[tool.state],
        reason=tool.reason,
        description=tool.description,
        parameters_json=json.dumps(tool.parameters, ensure_ascii=False) if is_usable else "",
        version=tool.digest,
        approved_description=approved[0],
        approved_parameters_json=json.dumps(approved[1], ensure_ascii=False)
        if approved[1] is not None
        else "",
    )


def _checked(
    wire: pb.McpServer, server_id: str, name: str, transport: Transport, checks: Checks
) -> McpServer:
    if transport is Transport.STDIO:
        _check_program(wire, checks)
    else:
        _check_http(wire, checks)
    timeout, calls = wire.call_timeout_seconds, wire.max_concurrent_calls
    checks.unless(
        0 <= timeout <= MAX_TIMEOUT_S,
        "server.call_timeout_seconds",
        f"must be 0 to {MAX_TIMEOUT_S}",
    )
    checks.unless(
        0 <= calls <= MAX_CALLS, "server.max_concurrent_calls", f"must be 0 to {MAX_CALLS}"
    )
    checks.done()
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


def _check_program(wire: pb.McpServer, checks: Checks) -> None:
    for field in ("url", "headers", "header_secrets", "bearer_secret"):
        checks.unless(
            not getattr(wire, field), f"server.{field}", "must be empty for a stdio server"
        )
    none = not wire.HasField("client_credentials")
    checks.unless(none, "server.client_credentials", "must be empty for a stdio server")
    checks.unless(not wire.oauth, "server.oauth", "must be empty for a stdio server")
    checks.unless(
        not wire.HasField("oauth_client"), "server.oauth_client", "must be empty for a stdio server"
    )
    checks.unless(
        0 < len(wire.command) <= MAX_ARGUMENTS and bool(wire.command[0].strip()),
        "server.command",
        f"must be a program and at most {MAX_ARGUMENTS - 1} arguments",
    )
    for index, argument in enumerate(wire.command[:MAX_ARGUMENTS]):
        checks.unless(
            len(argument) <= MAX_VALUE and "\0" not in argument,
            f"server.command[{index}]",
            f"must have at most {MAX_VALUE} characters, no NUL among them",
        )
    _check_map(wire.environment, "environment", checks, _VARIABLE)
    _check_map(wire.environment_secrets, "environment_secrets", checks, _VARIABLE, secrets=True)
    both = sorted(set(wire.environment) & set(wire.environment_secrets))
    checks.unless(
        not both, "server.environment", "names a variable that environment_secrets sets as well"
    )


def _check_http(wire: pb.McpServer, checks: Checks) -> None:
    for field in ("command", "environment", "environment_secrets"):
        checks.unless(
            not getattr(wire, field),
            f"server.{field}",
            "must be empty unless the transport is STDIO",
        )
    try:
        parse_url(wire.url)
    except ForbiddenUrlError as error:
        checks.fail("server.url", f"cannot be used: {error.message}")
    _check_map(wire.headers, "headers", checks, _HEADER)
    _check_map(wire.header_secrets, "header_secrets", checks, _HEADER, secrets=True)
    for name, value in wire.headers.items():
        checks.unless(
            bool(_HEADER_VALUE.fullmatch(value)),
            f'server.headers["{name[:100]}"]',
            "must be printable ASCII",
        )
        checks.unless(
            name.lower() not in _SECRET_HEADERS,
            f'server.headers["{name[:100]}"]',
            "is a secret: store it with PutSecret and name it in header_secrets or bearer_secret",
        )
    names = [name.lower() for name in (*wire.headers, *wire.header_secrets)]
    names += ["authorization"] * bool(wire.bearer_secret)
    checks.unless(len(set(names)) == len(names), "server.headers", "names a header twice")
    reserved = _RESERVED_HEADERS.intersection(names)
    checks.unless(not reserved, "server.headers", "names a header that the connection sets itself")
    if wire.bearer_secret:
        problem = secret_name_problem(wire.bearer_secret)
        checks.unless(not problem, "server.bearer_secret", problem)
    if wire.HasField("client_credentials"):
        checks.unless(
            "authorization" not in names,
            "server.client_credentials",
            "cannot be used together with bearer_secret or an Authorization header",
        )
        _check_client(wire.client_credentials, "client_credentials", wire.url, checks)
    if wire.oauth:
        checks.unless(
            "authorization" not in names and not wire.HasField("client_credentials"),
            "server.oauth",
            "cannot be used together with client_credentials, bearer_secret or an Authorization"
            " header",
        )
    if wire.HasField("oauth_client"):
        checks.unless(wire.oauth, "server.oauth_client", "needs oauth to be true")
        _check_oauth(wire.oauth_client, wire.url, checks)


def _check_oauth(client: pb.McpOAuthClient, url: str, checks: Checks) -> None:
    path = "server.oauth_client"
    checks.unless(
        bool(client.issuer) or not client.client_id,
        f"{path}.issuer",
        "must be set together with client_id",
    )
    checks.unless(
        bool(client.client_id) or not client.client_secret,
        f"{path}.client_id",
        "must be set together with client_secret",
    )
    if client.issuer:
        _check_issuer(client.issuer, f"{path}.issuer", url, checks)
    if client.client_id:
        _check_client_id(client.client_id, path, checks)
    if client.client_secret:
        problem = secret_name_problem(client.client_secret)
        checks.unless(not problem, f"{path}.client_secret", f"names a secret that {problem}")
    _check_scope(client.scope, path, checks)


def _check_client(client: pb.McpClientCredentials, field: str, url: str, checks: Checks) -> None:
    path = f"server.{field}"
    _check_issuer(client.issuer, f"{path}.issuer", url, checks)
    _check_client_id(client.client_id, path, checks)
    problem = secret_name_problem(client.client_secret)
    checks.unless(not problem, f"{path}.client_secret", f"names a secret that {problem}")
    _check_scope(client.scope, path, checks)


def _check_issuer(issuer: str, path: str, url: str, checks: Checks) -> None:
    try:
        parse_url(issuer)
    except ForbiddenUrlError as error:
        checks.fail(path, f"cannot be used: {error.message}")
    checks.unless(not set("?#") & set(issuer), path, "must have no query and no fragment")
    # If the server's traffic is encrypted, the client secret must not be sent in plain text.
    plain = issuer.lower().startswith("http:") and url.lower().startswith("https:")
    checks.unless(not plain, path, "must begin with https, as the server's URL does")


def _check_client_id(client_id: str, path: str, checks: Checks) -> None:
    checks.unless(
        len(client_id) <= MAX_CLIENT_ID and bool(_HEADER_VALUE.fullmatch(client_id)),
        f"{path}.client_id",
        f"must be at most {MAX_CLIENT_ID} printable ASCII characters",
    )


def _check_scope(scope: str, path: str, checks: Checks) -> None:
    checks.unless(
        not scope or (len(scope) <= MAX_SCOPE and bool(_SCOPE.fullmatch(scope))),
        f"{path}.scope",
        f"must be scopes separated by single spaces, at most {MAX_SCOPE} characters",
    )


def to_redirect(uri: str) -> str:
    """Returns a checked redirect URI.

    Raises:
        InvalidArgumentError: The URI is neither a loopback address nor an https URL.
    """
    checks = Checks()
    checks.unless(
        len(uri) <= MAX_REDIRECT and bool(_REDIRECT.fullmatch(uri)),
        "redirect_uri",
        "must be http with a loopback address, a port and a path, or an https URL, at most"
        f" {MAX_REDIRECT} characters without query and fragment",
    )
    checks.done()
    return uri


def check_authorization_response(request: pb.CompleteMcpSignInRequest) -> None:
    """Checks the authorization response that the browser brought back from a sign-in.

    Raises:
        InvalidArgumentError: State, code or issuer is malformed.
    """
    checks = Checks()
    for field, needed in (("state", True), ("code", True), ("issuer", False)):
        value = getattr(request, field)
        checks.unless(
            len(value) <= MAX_ANSWER and (bool(_ANSWER.fullmatch(value)) or not (needed or value)),
            field,
            f"must be at most {MAX_ANSWER} printable ASCII characters",
        )
    checks.done()


def _to_oauth(wire: pb.McpServer) -> OAuthClient | None:
    if not wire.oauth:
        return None
    client = wire.oauth_client
    return OAuthClient(client.issuer, client.client_id, client.client_secret, client.scope)


def _oauth_to_proto(client: OAuthClient | None) -> pb.McpOAuthClient | None:
    if client is None:
        return None
    return pb.McpOAuthClient(
        issuer=client.issuer,
        client_id=client.client_id,
        client_secret=client.client_secret,
        scope=client.scope,
    )


def _sign_in_to_proto(sign_in: CompletedSignIn | None) -> pb.McpSignIn | None:
    if sign_in is None:
        return None
    wire = pb.McpSignIn(principal=sign_in.principal, issuer=sign_in.issuer, problem=sign_in.problem)
    wire.sign_in_time.FromDatetime(sign_in.time)
    return wire


def _to_credentials(wire: pb.McpServer) -> ClientCredentials | None:
    if not wire.HasField("client_credentials"):
        return None
    credentials = wire.client_credentials
    return ClientCredentials(
        credentials.issuer, credentials.client_id, credentials.client_secret, credentials.scope
    )


def _credentials_to_proto(credentials: ClientCredentials | None) -> pb.McpClientCredentials | None:
    if credentials is None:
        return None
    return pb.McpClientCredentials(
        issuer=credentials.issuer,
        client_id=credentials.client_id,
        client_secret=credentials.client_secret,
        scope=credentials.scope,
    )


def _check_map(
    entries: Mapping[str, str],
    field: str,
    checks: Checks,
    key: re.Pattern[str],
    *,
    secrets: bool = False,
) -> None:
    checks.unless(
        len(entries) <= MAX_ENTRIES, f"server.{field}", f"has more than {MAX_ENTRIES} entries"
    )
    for name, value in list(entries.items())[:MAX_ENTRIES]:
        path = f'server.{field}["{name[:100]}"]'
        checks.unless(bool(key.fullmatch(name)), path, "is not a valid name")
        if secrets:
            problem = secret_name_problem(value)
            checks.unless(not problem, path, f"names a secret that {problem}")
        else:
            checks.unless(
                len(value) <= MAX_VALUE and "\0" not in value,
                path,
                f"must have at most {MAX_VALUE} characters, no NUL among them",
            )
