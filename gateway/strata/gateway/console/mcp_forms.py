"""The form for an MCP server, which shows no credential.

It shows the names of secrets, never their values. A value whose name looks like a credential, such
as the header ``X-Api-Key``, is shown as the placeholder ``[secret X-Api-Key]``. If the form is sent
with the placeholder, the stored value stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.gateway.console.form_pages import refusal
from strata.gateway.console.form_values import whole_number
from strata.gateway.console.forms import FormFields
from strata.shared.plain_credentials import plain_credentials
from strata.shared.redaction import REDACTED, Redactor

TRANSPORTS: Mapping[str, pb.McpTransport.ValueType] = {
    "streamable_http": pb.MCP_TRANSPORT_STREAMABLE_HTTP,
    "sse": pb.MCP_TRANSPORT_SSE,
    "stdio": pb.MCP_TRANSPORT_STDIO,
}
"""Transports by the names that the form has for them."""
NO_SIGN_IN, OF_PERSON, OF_CLIENT = "none", "person", "client"
"""Who signs in to a server."""
REQUEST_FIELDS = {
    "server.name": "name",
    "server.transport": "transport",
    "server.url": "url",
    "server.bearer_secret": "bearer_secret",
    "server.headers": "headers",
    "server.header_secrets": "header_secrets",
    "server.command": "command",
    "server.environment": "environment",
    "server.environment_secrets": "environment_secrets",
    "server.call_timeout_seconds": "call_timeout",
    "server.max_concurrent_calls": "max_calls",
    "server.oauth": "sign_in",
    "server.oauth_client": "sign_in",
    "server.oauth_client.issuer": "issuer",
    "server.oauth_client.client_id": "client_id",
    "server.oauth_client.client_secret": "client_secret",
    "server.oauth_client.scope": "scope",
    "server.client_credentials": "sign_in",
    "server.client_credentials.issuer": "issuer",
    "server.client_credentials.client_id": "client_id",
    "server.client_credentials.client_secret": "client_secret",
    "server.client_credentials.scope": "scope",
}
"""Fields of the form by the fields of a request that they set."""

_NOT_SAVED = "The MCP server was not saved."
_HIDDEN = re.compile(re.escape(REDACTED).replace(r"\{name\}", r"[^\]]*"))
_SEVERAL_LINES = "[unchanged value of {name}]"


def without_credentials(server: pb.McpServer) -> pb.McpServer:
    """Returns a server as pages show it: credentials among its values are replaced."""
    redactor = Redactor(_credentials_of(server))
    redacted = pb.McpServer()
    redacted.CopyFrom(server)
    redacted.url = redactor.text(server.url)
    redacted.command[:] = [redactor.text(argument) for argument in server.command]
    for name in ("headers", "environment"):
        values = getattr(redacted, name)
        for key, value in getattr(server, name).items():
            values[key] = redactor.text(value)
    return redacted


def filled_form(server: pb.McpServer) -> FormFields:
    """Returns the filled-in form of a server."""
    redacted = without_credentials(server)
    client = server.client_credentials if _is_client(server) else server.oauth_client
    return FormFields(
        {
            "state": [state_of(server)],
            "url": [redacted.url],
            "bearer_secret": [server.bearer_secret],
            "headers": [_lines_of(redacted.headers, ": ")],
            "header_secrets": [_lines_of(server.header_secrets, ": ")],
            "command": ["\n".join(_shown_arguments(redacted))],
            "environment": [_lines_of(redacted.environment, "=")],
            "environment_secrets": [_lines_of(server.environment_secrets, "=")],
            "call_timeout": [str(server.call_timeout_seconds or "")],
            "max_calls": [str(server.max_concurrent_calls or "")],
            "disabled": ["on" if server.disabled else ""],
            "sign_in": [_sign_in_of(server)],
            "issuer": [client.issuer],
            "client_id": [client.client_id],
            "client_secret": [client.client_secret],
            "scope": [client.scope],
        }
    )


def state_of(server: pb.McpServer) -> str:
    """Returns a text that identifies the stored configuration of a server."""
    return server.update_time.ToJsonString()


def server_in(form: FormFields, stored: pb.McpServer | None = None) -> pb.McpServer:
    """Returns the server that a form describes.

    Args:
        form: The form.
        stored: The server that the form changes; its credentials are kept where the form has their
            placeholders. None for a new server.

    Raises:
        InvalidArgumentError: A field has a wrong value.
    """
    stored_values = _StoredValues(stored or pb.McpServer())
    server = pb.McpServer(
        url=stored_values.url(form.text("url").strip()),
        command=[stored_values.argument(line) for line in _lines(form, "command")],
        bearer_secret=form.text("bearer_secret").strip(),
        headers=stored_values.values("headers", _pairs(form, "headers", ":")),
        header_secrets=_pairs(form, "header_secrets", ":"),
        environment=stored_values.values("environment", _pairs(form, "environment", "=")),
        environment_secrets=_pairs(form, "environment_secrets", "="),
        call_timeout_seconds=whole_number(
            form.text("call_timeout"), "server.call_timeout_seconds", _NOT_SAVED
        ),
        max_concurrent_calls=whole_number(
            form.text("max_calls"), "server.max_concurrent_calls", _NOT_SAVED
        ),
        disabled=form.checked("disabled"),
    )
    client = {
        name: form.text(name).strip() for name in ("issuer", "client_id", "client_secret", "scope")
    }
    sign_in = form.text("sign_in")
    if sign_in == OF_CLIENT:
        server.client_credentials.CopyFrom(pb.McpClientCredentials(**client))
    elif sign_in == OF_PERSON:
        server.oauth = True
        if any(client.values()):
            server.oauth_client.CopyFrom(pb.McpOAuthClient(**client))
    return server


def transport_in(form: FormFields) -> pb.McpTransport.ValueType:
    """Returns the transport of a new server.

    Raises:
        InvalidArgumentError: It is not one of the choices.
    """
    transport = form.text("transport")
    if transport not in TRANSPORTS:
        choices = ", ".join(TRANSPORTS)
        raise refusal(_NOT_SAVED, "server.transport", f"{transport!r} is not one of {choices}")
    return TRANSPORTS[transport]


class _StoredValues:
    """Finds the stored values that a form hides, by their placeholders."""

    def __init__(self, stored: pb.McpServer) -> None:
        self._stored = stored
        self._redacted = without_credentials(stored)
        self._credentials = _credentials_of(stored)

    def url(self, text: str) -> str:
        """Returns the URL in a text of the form, with placeholders replaced."""
        if text == self._redacted.url:
            return str(self._stored.url)
        return self._with_credentials("server.url", text, quoted=True)

    def argument(self, text: str) -> str:
        """Returns the argument of the command in a line of the form, with placeholders replaced."""
        arguments = zip(_shown_arguments(self._redacted), self._stored.command, strict=True)
        for redacted, argument in arguments:
            if text == redacted:
                return argument
        return self._with_credentials("server.command", text)

    def values(self, field: str, pairs: Mapping[str, str]) -> dict[str, str]:
        """Returns the headers or the variables in pairs of the form, with placeholders replaced."""
        redacted, stored = getattr(self._redacted, field), getattr(self._stored, field)
        return {
            name: stored[name]
            if name in stored and text == _on_one_line(name, redacted[name]).strip()
            else self._with_credentials(f"server.{field}", text)
            for name, text in pairs.items()
        }

    def _with_credentials(self, field: str, text: str, *, quoted: bool = False) -> str:
        """Replaces placeholders by the stored credentials.

        Raises:
            InvalidArgumentError: No credential is stored for a placeholder.
        """
        for name, value in self._credentials.items():
            text = text.replace(
                REDACTED.format(name=name), quote(value, safe="") if quoted else value
            )
        hidden = _HIDDEN.search(text)
        if hidden is not None:
            problem = (
                f"{hidden.group()} is the placeholder of a hidden value, but no such value is "
                "stored"
            )
            raise refusal(_NOT_SAVED, field, problem)
        return text


def _credentials_of(server: pb.McpServer) -> dict[str, str]:
    return plain_credentials(
        server.command, server.url, dict(server.environment), dict(server.headers)
    )


def _is_client(server: pb.McpServer) -> bool:
    return server.HasField("client_credentials")


def _sign_in_of(server: pb.McpServer) -> str:
    return OF_CLIENT if _is_client(server) else OF_PERSON if server.oauth else NO_SIGN_IN


def _lines_of(pairs: Mapping[str, str], separator: str) -> str:
    return "\n".join(
        f"{name}{separator}{_on_one_line(name, value)}" for name, value in sorted(pairs.items())
    )


def _shown_arguments(server: pb.McpServer) -> Iterable[str]:
    """Yields the arguments of a command that a form has lines for."""
    for number, argument in enumerate(server.command):
        name = f"argument {number}"
        yield _on_one_line(name, argument) if argument.strip() else _SEVERAL_LINES.format(name=name)


def _on_one_line(name: str, value: str) -> str:
    """Returns a value, or a placeholder for a value of several lines."""
    several = "\n" in value or "\r" in value
    return _SEVERAL_LINES.format(name=name) if several else value


def _lines(form: FormFields, field: str) -> list[str]:
    return [line for line in form.text(field).split("\n") if line.strip()]


def _pairs(form: FormFields, field: str, separator: str) -> dict[str, str]:
    pairs = {}
    for line in _lines(form, field):
        name, separated, value = line.partition(separator)
        if not separated or not name.strip():
            problem = f"each line is a name, {separator!r} and a value"
            raise refusal(_NOT_SAVED, f"server.{field}", problem)
        pairs[name.strip()] = value.strip()
    return pairs
