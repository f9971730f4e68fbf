"""MCP servers of a project, their tools, and the approval of changed tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from strata.protocol.errors import FailedPreconditionError, NotFoundError, Reason
from strata.shared.idempotency.keys import RequestKey
from strata.shared.plain_credentials import plain_credentials
from strata.tool_execution.domain.tools import Tool

MAX_SERVERS = 100
# A server that reports new names with every listing must not fill the table.
MAX_KNOWN_TOOLS = 1_000
TOO_MANY_TOOLS = f"more than {MAX_KNOWN_TOOLS} tools were seen of it"
DEFAULT_TIMEOUT_S = 30
DEFAULT_CALLS = 4
MAX_ERROR = 1_000


class Transport(StrEnum):
    """The transport of an MCP server."""

    STDIO = "stdio"
    SSE = "sse"
    STREAMABLE_HTTP = "streamable_http"


class ToolState(StrEnum):
    """Approval state of a server's tool; see ``McpToolState`` in the protos."""

    APPROVED = "approved"
    CHANGED = "changed"
    QUARANTINED = "quarantined"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Configuration of the OAuth client credentials grant: Strata signs in as itself.

    Attributes:
        issuer: The only authorization server that may receive the credentials.
        client_id: Id of the client at the authorization server.
        client_secret: Name of the secret that holds the client secret.
        scope: Requested scopes, separated by spaces; empty means those that the server advertises.
    """

    issuer: str
    client_id: str
    client_secret: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """Configuration of the sign-in of a person (OAuth); empty values are discovered.

    Attributes:
        issuer: The only authorization server that may be used.
        client_id: Id of a client that was registered manually.
        client_secret: Name of the secret that holds the secret of this client.
        scope: Requested scopes, separated by spaces; empty means those that the server advertises.
    """

    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class CompletedSignIn:
    """A completed sign-in to a server.

    Attributes:
        principal: The caller who completed it.
        time: When it was completed.
        issuer: The authorization server.
        problem: Why a new sign-in is needed, or empty.
    """

    principal: str
    time: datetime
    issuer: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server.

    Attributes:
        command: Program and arguments (stdio).
        environment: Environment variables without secrets (stdio).
        environment_secrets: Names of secrets by environment variable (stdio).
        url: URL of the server (HTTP).
        headers: Headers without secrets (HTTP).
        header_secrets: Names of secrets by header (HTTP).
        bearer_secret: Name of the secret that is sent as bearer token, or empty (HTTP).
        client_credentials: Client credentials grant, or None (HTTP).
        oauth: Sign-in of a person, or None (HTTP).
        enabled: Whether the server is used.
        call_timeout: Seconds that one call may take.
        max_calls: Maximum number of concurrent calls.
        error: The error of the last contact, or empty.
        last_contact_time: Time of the last successful contact.
        sign_in: The current sign-in, or None.
    """

    id: str
    name: str
    transport: Transport
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_secrets: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    header_secrets: Mapping[str, str] = field(default_factory=dict)
    bearer_secret: str = ""
    client_credentials: ClientCredentials | None = None
    oauth: OAuthClient | None = None
    enabled: bool = True
    call_timeout: int = DEFAULT_TIMEOUT_S
    max_calls: int = DEFAULT_CALLS
    error: str = ""
    last_contact_time: datetime | None = None
    create_time: datetime | None = None
    update_time: datetime | None = None
    sign_in: CompletedSignIn | None = None

    @property
    def secret_names(self) -> frozenset[str]:
        """Names of the secrets that the server needs."""
        names = {*self.environment_secrets.values(), *self.header_secrets.values()}
        if self.client_credentials is not None:
            names.add(self.client_credentials.client_secret)
        if self.oauth is not None:
            names.add(self.oauth.client_secret)
        return frozenset((names | {self.bearer_secret}) - {""})

    @property
    def plain_credentials(self) -> dict[str, str]:
        """Credentials that are configured as plain values, by name; they are redacted.

        They must not appear in tool returns or logs.
        """
        return plain_credentials(self.command, self.url, self.environment, self.headers)

    @property
    def healthy(self) -> bool:
        """Whether the last contact succeeded."""
        return self.last_contact_time is not None and not self.error

    @property
    def configuration(self) -> list[Any]:
        """The values that need a new connection when they change."""
        return [
            self.transport,
            self.command,
            sorted(self.environment.items()),
            sorted(self.environment_secrets.items()),
            self.url,
            sorted(self.headers.items()),
            sorted(self.header_secrets.items()),
            self.bearer_secret,
            self.max_calls,
            # Only if set: digests of requests from before these fields existed stay the same.
            *([asdict(self.client_credentials)] if self.client_credentials else []),
            *([{"oauth": asdict(self.oauth)}] if self.oauth else []),
        ]


@dataclass(frozen=True, slots=True)
class ReportedTool:
    """A tool as its server reports it.

    Attributes:
        name: Its name on the server.
        tool_name: Its name in the registry.
        description: The description that the server reports.
        parameters: JSON schema of the arguments, checked for models; empty if there is a problem.
        problem: Why it cannot be used, or empty.
    """

    name: str
    tool_name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def digest(self) -> str:
        """Hash of the description and the schema."""
        text = json.dumps([self.description, self.parameters], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class McpTool:
    """The stored state of a server's tool.

    Attributes:
        name: Its name on the server.
        tool_name: Its name in the registry.
        state: Its approval state.
        reason: Why it cannot be used, or empty.
        description: The current description.
        parameters: The current JSON schema of the arguments.
        digest: Hash of the current description and schema.
        approved_digest: Hash of the approved ones; empty if none were ever approved.
        approved: The approved description and schema, if they differ from the current ones.
    """

    name: str
    tool_name: str
    state: ToolState
    reason: str
    description: str
    parameters: Mapping[str, Any]
    digest: str
    approved_digest: str
    approved: tuple[str, Mapping[str, Any]] | None = None


CHANGED_REASON = "its description or schema has changed since it was approved"
GONE_REASON = "the server no longer has it"


def reconcile(
    stored_tools: Mapping[str, McpTool], reported: Iterable[ReportedTool]
) -> list[McpTool]:
    """Returns the new state of each tool after a complete listing.

    A tool can be used only with the approved description and schema. The first ones that a server
    reports count as approved. A tool that was gone and comes back unchanged stays approved.

    Args:
        stored_tools: Stored tools by name.
        reported: The tools of the listing.
    """
    tools: dict[str, McpTool] = {}
    for report in reported:
        before = stored_tools.get(report.name)
        approved = before.approved_digest if before is not None else ""
        state, reason = ToolState.APPROVED, ""
        if report.problem:
            state, reason = ToolState.QUARANTINED, report.problem
        elif approved and approved != report.digest:
            state, reason = ToolState.CHANGED, CHANGED_REASON
        tools[report.name] = McpTool(
            name=report.name,
            tool_name=before.tool_name if before is not None else report.tool_name,
            state=state,
            reason=reason,
            description=report.description,
            parameters=report.parameters,
            digest=report.digest,
            approved_digest=report.digest if state is ToolState.APPROVED else approved,
        )
    for name, tool in stored_tools.items():
        if name not in tools:
            tools[name] = replace(tool, state=ToolState.GONE, reason=GONE_REASON)
    return list(tools.values())


@dataclass(frozen=True, slots=True)
class Connectable:
    """A server and its stored secrets, still encrypted."""

    server: McpServer
    sealed: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ServerSyncResult:
    """A server after its tools were listed and stored.

    Attributes:
        server: The server.
        changed: Names of the tools that have changed and need approval.
    """

    server: McpServer
    changed: Sequence[str]


class McpStore(Protocol):
    """The MCP servers of the calling project. Unknown ids raise MCP_SERVER_NOT_FOUND."""

    async def add(self, server: McpServer, request: RequestKey) -> McpServer:
        """Stores a new server; a repeated request returns the server of the first one.

        Raises:
            AlreadyExistsError: The name is taken (``NAME_TAKEN``), or the request id belongs to a
                different request (``REQUEST_ID_REUSED``).
            ResourceExhaustedError: The project has too many servers (``QUOTA_EXCEEDED``).
        """
        ...

    async def get(self, server_id: str) -> McpServer:
        """Returns a server."""
        ...

    async def page(self, after: str, limit: int) -> Sequence[McpServer]:
        """Returns up to `limit` servers in order of their names, after the name `after`."""
        ...

    async def update(self, server: McpServer) -> McpServer:
        """Stores the configuration of a server."""
        ...

    async def delete(self, server_id: str) -> None:
        """Deletes a server and its tools."""
        ...

    async def connectable(self, server_ids: Collection[str]) -> Mapping[str, Connectable]:
        """Returns servers by id with their secrets; deleted servers are left out."""
        ...

    async def sync(self, server_id: str, reported: Sequence[ReportedTool]) -> ServerSyncResult:
        """Stores the reported tools of a server, and a successful contact."""
        ...

    async def failed(self, server_id: str, error: str) -> None:
        """Stores a failed contact."""
        ...

    async def usable(self, server_id: str) -> Sequence[Tool]:
        """Returns the tools of a server that are in the registry."""
        ...

    async def tools(self, server_id: str, after: str, limit: int) -> Sequence[McpTool]:
        """Returns up to `limit` tools in order of their names, after the name `after`."""
        ...

    async def quarantined(self, server_id: str) -> Mapping[str, str]:
        """Returns the tools that cannot be used: reasons by tool name."""
        ...

    async def approve(self, server_id: str, name: str, digest: str) -> McpTool:
        """Approves the current description and schema of a tool.

        Raises:
            NotFoundError: The server has no such tool (``TOOL_NOT_FOUND``).
            AbortedError: The digest is not the current one (``REVISION_MISMATCH``).
            FailedPreconditionError: The tool cannot be used (``MCP_TOOL_UNUSABLE``).
        """
        ...


def server_missing(server_id: str) -> NotFoundError:
    """Returns the error for a server that does not exist."""
    return NotFoundError(
        f"MCP server {server_id} does not exist.",
        reason=Reason.MCP_SERVER_NOT_FOUND,
        metadata={"id": server_id},
    )


def stdio_disabled(name: str) -> FailedPreconditionError:
    """Returns the error for a stdio server where the operator does not allow them."""
    return FailedPreconditionError(
        f"The MCP server {name} would be started as a program on this host, which the operator"
        " has not allowed (STRATA_TOOL_EXECUTION_MCP_STDIO). Use a server that is reached over"
        " HTTP.",
        reason=Reason.MCP_STDIO_DISABLED,
        metadata={"name": name},
    )


def unusable(tool: McpTool) -> FailedPreconditionError:
    """Returns the error for a tool that cannot be approved."""
    return FailedPreconditionError(
        f"The tool {tool.name} cannot be used: {tool.reason}.",
        reason=Reason.MCP_TOOL_UNUSABLE,
        metadata={"name": tool.name, "state": tool.state.value},
    )
