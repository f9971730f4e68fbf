"""Anthropic's messages API at Amazon Bedrock. Pure.

The region is part of the host, `https://bedrock-runtime.eu-central-1.amazonaws.com`, or the query
of any other address, `https://proxy.example?region=eu-central-1`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlsplit

from strata.agent_loop.models.dialects import anthropic

_HOST = re.compile(r"(?:^|\.)bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
_REGION = re.compile(r"[a-z]{2}[a-z0-9-]*-\d+")


@dataclass(frozen=True, slots=True)
class BedrockAddress:
    """The address of Bedrock, and the region that requests are signed for."""

    base_url: str
    region: str


def address_of(region: str) -> str:
    """Returns the address of a region; empty without a region."""
    return f"https://bedrock-runtime.{region}.amazonaws.com" if region else ""


def read_address(base_url: str) -> BedrockAddress:
    """Parses a base URL.

    Raises:
        ValueError: It is not the address of a server, or does not contain the region.
    """
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    match = _HOST.search(host)
    region = match[1] if match else parse_qs(parts.query).get("region", [""])[0]
    if parts.scheme not in ("http", "https") or not host or not _REGION.fullmatch(region):
        raise ValueError(
            f"{base_url!r} is not an address of Amazon Bedrock with a region; set AWS_REGION, or a"
            " base_url such as https://bedrock-runtime.eu-central-1.amazonaws.com"
        )
    return BedrockAddress(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", region)


def _check(base_url: str) -> None:
    read_address(base_url)


DIALECT = replace(
    anthropic.DIALECT,
    name="bedrock",
    adapter="strata.agent_loop.models.anthropic_api.bedrock",
    check_address=_check,
)
