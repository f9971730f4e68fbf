"""Options of ``strata mcp servers add``: how Strata authenticates, and what it sends or sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.cli.failures import UsageError


@dataclass(frozen=True, slots=True)
class AuthenticationOptions:
    """How Strata authenticates at an MCP server."""

    bearer: Annotated[
        str, typer.Option("--bearer", help="Name of the secret that contains its bearer token.")
    ] = ""
    issuer: Annotated[
        str, typer.Option("--oauth-issuer", help="Authorization server that issues its tokens.")
    ] = ""
    client_id: Annotated[
        str, typer.Option("--oauth-client", help="Client id at the authorization server.")
    ] = ""
    client_secret: Annotated[
        str,
        typer.Option("--oauth-secret", help="Name of the secret that contains the client secret."),
    ] = ""
    scope: Annotated[
        str, typer.Option("--oauth-scope", help="Scopes to ask for, separated by spaces.")
    ] = ""
    sign_in: Annotated[
        bool, typer.Option("--sign-in", help="A person signs in: see strata mcp login.")
    ] = False

    def apply(self, server: pb.McpServer) -> None:
        """Sets the authentication of a server.

        Raises:
            UsageError: An option is missing.
        """
        client_credentials = (self.issuer, self.client_id, self.client_secret)
        if not self.sign_in and any((*client_credentials, self.scope)):
            if not all(client_credentials):
                raise UsageError(
                    "Without --sign-in, --oauth-issuer, --oauth-client and --oauth-secret go"
                    " together."
                )
            server.client_credentials.CopyFrom(pb.McpClientCredentials(**self._oauth_fields))
        elif self.sign_in and any(self._oauth_fields.values()):
            server.oauth_client.CopyFrom(pb.McpOAuthClient(**self._oauth_fields))
        server.bearer_secret = self.bearer
        server.oauth = self.sign_in

    @property
    def _oauth_fields(self) -> dict[str, str]:
        return {
            "issuer": self.issuer,
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "scope": self.scope,
        }


@dataclass(frozen=True, slots=True)
class VariableOptions:
    """The headers and environment variables of an MCP server."""

    headers: Annotated[
        list[str] | None, typer.Option("--header", help="NAME=VALUE, no secret; repeatable.")
    ] = None
    header_secrets: Annotated[
        list[str] | None, typer.Option("--header-secret", help="NAME=SECRET; repeatable.")
    ] = None
    environment: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=VALUE, no secret; repeatable.")
    ] = None
    environment_secrets: Annotated[
        list[str] | None, typer.Option("--env-secret", help="NAME=SECRET; repeatable.")
    ] = None

    def apply(self, server: pb.McpServer) -> None:
        """Sets the headers and environment variables of a server.

        Raises:
            UsageError: An option is not NAME=VALUE.
        """
        server.headers.update(_pairs("--header", self.headers))
        server.header_secrets.update(_pairs("--header-secret", self.header_secrets))
        server.environment.update(_pairs("--env", self.environment))
        server.environment_secrets.update(_pairs("--env-secret", self.environment_secrets))


def _pairs(option: str, entries: list[str] | None) -> dict[str, str]:
    pairs = {}
    for entry in entries or []:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} is NAME=VALUE.")
        pairs[name] = value
    return pairs
