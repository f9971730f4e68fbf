"""Addresses of memory blocks as MCP resources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cli.mcp_server.http import is_loopback, url_of
from strata.shared.agent_mcp.resources import label_of, uri_of


@given(label=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_the_address_of_a_block_identifies_it_and_its_agent(label: str) -> None:
    uri = uri_of("agent-1", label)
    assert label_of(uri, "agent-1") == label
    assert label_of(uri, "agent-2") == ""
    assert label_of(uri, "agent-11") == ""


@given(text=st.text())
def test_invalid_addresses_have_no_label(text: str) -> None:
    assert label_of(text, "agent-1") == ""


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_only_loopback_hosts_count_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_an_ipv6_address_is_in_brackets() -> None:
    assert url_of("::1", 80) == "http://[::1]:80/mcp"
    assert url_of("localhost", 80) == "http://localhost:80/mcp"
