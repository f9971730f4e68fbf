"""Credentials in the configuration of an MCP server that are plain values, found by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from strata.shared.redaction import MIN_KEY_CHARS

# Names of headers, variables, options and query parameters that hold a credential, such as
# X-Api-Key or GITHUB_TOKEN.
_CREDENTIAL = re.compile(
    r"(?:auth|authorization|credentials?|cookie|key|pass|passphrase|passw(?:or)?d|pwd|secret"
    r"|signature|token)$",
    re.IGNORECASE,
)
# A password in a URL, such as that of a database.
_PASSWORD = re.compile(r"://[^/?#\s@:]*:([^/?#\s@]+)@")
_OPTION = re.compile(r"-{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


def plain_credentials(
    command: Sequence[str], url: str, environment: Mapping[str, str], headers: Mapping[str, str]
) -> dict[str, str]:
    """Returns the credentials in the configuration of an MCP server, by name.

    These are headers, environment variables, command options and URL parameters with names of
    credentials, and passwords in URLs. For a header such as ``Authorization: Bearer …`` the value
    is listed with and without its scheme.

    Args:
        command: Program and arguments.
        url: URL of the server.
        environment: Environment variables by name.
        headers: Headers by name.
    """
    named_values = (*environment.items(), *headers.items(), *_in_url(url), *_in_command(command))
    credentials = {}
    for name, value in named_values:
        if _CREDENTIAL.search(name) and len(value) >= MIN_KEY_CHARS:
            credentials[name] = value
            _, _, credential = value.partition(" ")
            if len(credential) >= MIN_KEY_CHARS:
                credentials[f"of {name}"] = credential
        for number, password in enumerate(_PASSWORD.findall(value)):
            if len(password) >= MIN_KEY_CHARS:
                credentials[f"password {number + 1} in {name}"] = password
    return credentials


def _in_url(url: str) -> Iterator[tuple[str, str]]:
    yield from parse_qsl(urlsplit(url).query, keep_blank_values=True)


def _in_command(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    name = command[0] if command else ""
    for argument in command[1:]:
        option = _OPTION.fullmatch(argument)
        if option is not None:
            yield option[1], option[2]
        else:
            # The value of the option before it, or an argument without a name.
            yield name, argument
        name = argument
