"""MCP servers of a project, and what is known of their tools."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from strata.shared.errors import FailedPreconditionError, NotFoundError, Reason
from strata.shared.redaction import MIN_KEY_CHARS
from strata.tool_execution.domain.registry import Request
from strata.tool_execution.domain.tools import Tool

MAX_SERVERS = 100
# A server that makes up new names with every listing must not fill the table.
MAX_KNOWN_TOOLS = 1_000
TOO_MANY_TOOLS = f"more than {MAX_KNOWN_TOOLS} tools were seen of it"
DEFAULT_TIMEOUT_S = 30
DEFAULT_CALLS = 4
MAX_ERROR = 1_000
# Names of headers, variables, options and query parameters that hold a credential, such as
# X-Api-Key or GITHUB_TOKEN.
_CREDENTIAL = re.compile(
    r"(?:auth|authorization|credentials?|cookie|key|pass|passphrase|passw(?:or)?d|pwd|secret"
    r"|signature|token)$",
    re.IGNORECASE,
)
# A password in an address, such as that of a database.
_PASSWORD = re.compile(r"://[^/?#\s@:]*:([^/?#\s@]+)@")
_OPTION = re.compile(r"-{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


class Transport(StrEnum):
    """How a server is reached."""

    STDIO = "stdio"
    SSE = "sse"
    STREAMABLE_HTTP = "streamable_http"


class ToolState(StrEnum):
    """Whether a tool of a server can be used; see ``McpToolState`` in the protos."""

    APPROVED = "approved"
    CHANGED = "changed"
    QUARANTINED = "quarantined"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """How a client gets tokens for itself from an authorization server.

    Attributes:
        issuer: The only authorization server that the credentials are for.
        client_id: Id of the client there.
        client_secret: Name of the secret that is the client's.
        scope: Scopes to ask for, separated by spaces; empty means what the server names.
    """

    issuer: str
    client_id: str
    client_secret: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """How a person signs in to a server; what is empty is found out.

    Attributes:
        issuer: The only authorization server that may be used.
        client_id: Id of a client that was registered there by hand.
        client_secret: Name of the secret that is that client's.
        scope: Scopes to ask for, separated by spaces; empty means what the server names.
    """

    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in that counts.

    Attributes:
        principal: Who completed it.
        time: When.
        issuer: The authorization server.
        problem: Why somebody has to sign in again, or empty.
    """

    principal: str
    time: datetime
    issuer: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server.

    Attributes:
        command: Program and arguments (stdio).
        environment: Variables that are no secrets (stdio).
        environment_secrets: Names of secrets by variable (stdio).
        url: Where it is (HTTP).
        headers: Headers that are no secrets (HTTP).
        header_secrets: Names of secrets by header (HTTP).
        bearer_secret: Name of the secret that is sent as bearer token, or empty (HTTP).
        client_credentials: How to get tokens for it, or None (HTTP).
        oauth: How a person signs in, or None if nobody does (HTTP).
        enabled: False if it is not to be used.
        call_timeout: Seconds that one call may take.
        max_calls: Calls at the same time at most.
        error: What went wrong at the last contact, or empty.
        last_contact_time: When contact worked last.
        sign_in: Who has signed in, or None.
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
    sign_in: SignIn | None = None

    @property
    def secret_names(self) -> frozenset[str]:
        """The secrets that it needs."""
        names = {*self.environment_secrets.values(), *self.header_secrets.values()}
        if self.client_credentials is not None:
            names.add(self.client_credentials.client_secret)
        if self.oauth is not None:
            names.add(self.oauth.client_secret)
        return frozenset((names | {self.bearer_secret}) - {""})

    @property
    def plain_credentials(self) -> dict[str, str]:
        """Values by name of what is configured in the clear, but named like a credential.

        These are headers, variables, options of the command and parameters of the URL, and
        passwords in addresses. What is sent must not come back to a model or into a log. The
        credential of a header such as ``Authorization: Bearer …`` is there with its scheme and
        without it.
        """
        found = {}
        for name, value in self._named_values():
            if _CREDENTIAL.search(name) and len(value) >= MIN_KEY_CHARS:
                found[name] = value
                _, _, credential = value.partition(" ")
                if len(credential) >= MIN_KEY_CHARS:
                    found[f"of {name}"] = credential
            for number, password in enumerate(_PASSWORD.findall(value)):
                if len(password) >= MIN_KEY_CHARS:
                    found[f"password {number + 1} in {name}"] = password
        return found

    def _named_values(self) -> Iterator[tuple[str, str]]:
        yield from self.environment.items()
        yield from self.headers.items()
        yield from parse_qsl(urlsplit(self.url).query, keep_blank_values=True)
        name = self.command[0] if self.command else ""
        for argument in self.command[1:]:
            option = _OPTION.fullmatch(argument)
            if option is not None:
                yield option[1], option[2]
            else:
                # The value of the option before it, or nobody's.
                yield name, argument
            name = argument

    @property
    def healthy(self) -> bool:
        """Whether the last contact worked."""
        return self.last_contact_time is not None and not self.error

    @property
    def configuration(self) -> list[Any]:
        """What makes it another server to connect to."""
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
            # Only where there are some: what was noted of requests before stays the same.
            *([asdict(self.client_credentials)] if self.client_credentials else []),
            *([{"oauth": asdict(self.oauth)}] if self.oauth else []),
        ]


@dataclass(frozen=True, slots=True)
class Reported:
    """A tool as its server describes it.

    Attributes:
        name: As the server calls it.
        tool_name: Its name in the registry.
        parameters: JSON schema of the arguments, fit for models; empty if there is a problem.
        problem: Why it cannot be used, or empty.
    """

    name: str
    tool_name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def digest(self) -> str:
        """Names exactly this description and schema."""
        text = json.dumps([self.description, self.parameters], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class McpTool:
    """What is known of a tool of a server.

    Attributes:
        reason: Why it cannot be used, or empty.
        description: What it says of itself now.
        digest: Of what it says now.
        approved_digest: Of what was approved; empty if nothing ever was.
        approved: What was approved, if it is something else: description and schema.
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


CHANGED_REASON = "it describes itself in another way than when it was approved"
GONE_REASON = "the server no longer has it"


def reconcile(known: Mapping[str, McpTool], reported: Iterable[Reported]) -> list[McpTool]:
    """Returns what is to be known of each tool, after a listing of all of them.

    A tool is usable only with the very description and schema that were approved. The first
    ones count as approved; so does what comes back after the tool was gone, if it is the same.
    """
    found: dict[str, McpTool] = {}
    for each in reported:
        before = known.get(each.name)
        approved = before.approved_digest if before is not None else ""
        state, reason = ToolState.APPROVED, ""
        if each.problem:
            state, reason = ToolState.QUARANTINED, each.problem
        elif approved and approved != each.digest:
            state, reason = ToolState.CHANGED, CHANGED_REASON
        found[each.name] = McpTool(
            name=each.name,
            tool_name=before.tool_name if before is not None else each.tool_name,
            state=state,
            reason=reason,
            description=each.description,
            parameters=each.parameters,
            digest=each.digest,
            approved_digest=each.digest if state is ToolState.APPROVED else approved,
        )
    for name, tool in known.items():
        if name not in found:
            found[name] = replace(tool, state=ToolState.GONE, reason=GONE_REASON)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Connectable:
    """A server, and the stored secrets among those that it needs."""

    server: McpServer
    sealed: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Synced:
    """A server after its tools were read.

    Attributes:
        changed: Names of the tools that have changed and wait for approval.
    """

    server: McpServer
    changed: Sequence[str]


class McpStore(Protocol):
    """The MCP servers of the calling project. Unknown ids raise MCP_SERVER_NOT_FOUND."""

    async def add(self, server: McpServer, request: Request) -> McpServer:
        """Stores a new server; a repeated request gets the server of the first one.

        Raises:
            AlreadyExistsError: NAME_TAKEN, or REQUEST_ID_REUSED.
            ResourceExhaustedError: QUOTA_EXCEEDED.
        """
        ...

    async def get(self, server_id: str) -> McpServer:
        """Returns a server."""
        ...

    async def page(self, after: str, limit: int) -> Sequence[McpServer]:
        """Returns servers by name, those after a name."""
        ...

    async def update(self, server: McpServer) -> McpServer:
        """Stores how a server is to be reached and used."""
        ...

    async def delete(self, server_id: str) -> None:
        """Deletes a server with its tools."""
        ...

    async def connectable(self, server_ids: Collection[str]) -> Mapping[str, Connectable]:
        """Returns servers by id with their secrets; those that are gone are left out."""
        ...

    async def sync(self, server_id: str, reported: Sequence[Reported]) -> Synced:
        """Stores what a server says of its tools, and that contact worked."""
        ...

    async def failed(self, server_id: str, error: str) -> None:
        """Stores that contact did not work."""
        ...

    async def usable(self, server_id: str) -> Sequence[Tool]:
        """Returns the registry's tools of a server."""
        ...

    async def tools(self, server_id: str, after: str, limit: int) -> Sequence[McpTool]:
        """Returns what is known of the tools, by name, those after a name."""
        ...

    async def quarantined(self, server_id: str) -> Mapping[str, str]:
        """Returns reasons by name of the tools that cannot be used."""
        ...

    async def approve(self, server_id: str, name: str, digest: str) -> McpTool:
        """Approves what a tool says of itself.

        Raises:
            NotFoundError: TOOL_NOT_FOUND.
            AbortedError: REVISION_MISMATCH; the digest is not the current one.
            FailedPreconditionError: MCP_TOOL_UNUSABLE.
        """
        ...


def server_missing(server_id: str) -> NotFoundError:
    """Returns what is raised for a server that is not there."""
    return NotFoundError(
        f"MCP server {server_id} does not exist.",
        reason=Reason.MCP_SERVER_NOT_FOUND,
        metadata={"id": server_id},
    )


def stdio_disabled(name: str) -> FailedPreconditionError:
    """Returns what is raised where servers may not be started as programs."""
    return FailedPreconditionError(
        f"The MCP server {name} would be started as a program on this host, which the operator"
        " has not allowed (STRATA_TOOL_EXECUTION_MCP_STDIO). Use a server that is reached over"
        " HTTP.",
        reason=Reason.MCP_STDIO_DISABLED,
        metadata={"name": name},
    )


def unusable(tool: McpTool) -> FailedPreconditionError:
    """Returns what is raised for a tool that cannot be approved."""
    return FailedPreconditionError(
        f"The tool {tool.name} cannot be used: {tool.reason}.",
        reason=Reason.MCP_TOOL_UNUSABLE,
        metadata={"name": tool.name, "state": tool.state.value},
    )
