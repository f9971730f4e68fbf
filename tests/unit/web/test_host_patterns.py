"""Names of hosts in the lists of tools and of operators."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from security_examples import security_examples
from strata.shared.web.host_patterns import covers, listed, problem_of
from strata.shared.web.url_guard import parse_url
from strata.tool_execution.domain.network_policy import NetworkPolicy

LABELS = st.from_regex(r"\A[a-z][a-z0-9]{0,9}\Z")
NAMES = st.lists(LABELS, min_size=2, max_size=4).map(".".join)


@pytest.mark.parametrize(
    "host", ["api.example.com", "*.example.com", "xn--bcher-kva.example", "a_b.c"]
)
def test_valid_host_names_are_accepted(host: str) -> None:
    assert problem_of(host) == ""


@pytest.mark.parametrize(
    "host",
    [
        "", "*", "*.", "*.com", "com", "localhost", "a.*.com", "**.a.com", "a*.b.com", ".a.com",
        "a.com.", "A.com", "bücher.de", "a.com:443", "https://a.com", "a.com/", "u@a.com", "a..b",
        "127.0.0.1", "*.0.0.1", "1.2.3.4", "0x7f.1", "a.0x10", "2130706433", "[::1]", "a b.com",
        "::1", "a.com\n",
        "-a.com", "a-.com", "a" * 64 + ".com", "a." * 130 + "com", "a.com\0",
    ],
)  # fmt: skip
def test_every_other_host_is_refused(host: str) -> None:
    assert problem_of(host)


@pytest.mark.parametrize(
    "host",
    [
        "metadata.google.internal", "*.google.internal", "x.metadata.google.internal",
        "*.metadata.google.internal", "metadata.goog", "instance-data.ec2.internal",
        "*.ec2.internal", "instance-data.eu-west-1.compute.internal", "metadata.azure.internal",
        "*.azure.internal", "metadata.tencentyun.com", "*.tencentyun.com", "kubernetes.default.svc",
        "*.default.svc", "*.svc.cluster.local",
    ],
)  # fmt: skip
def test_metadata_services_are_refused_as_hosts_and_wildcards(host: str) -> None:
    assert "metadata service" in problem_of(host)


def test_other_internal_names_and_look_alikes_are_accepted() -> None:
    for host in ("wiki.corp.internal", "*.corp.internal", "metadata.example.com", "goog.example"):
        assert problem_of(host) == ""


@security_examples
@given(st.text(alphabet="*.-_abx019:/@[]% \n", max_size=20))
def test_accepted_hosts_are_names_that_urls_parse_to(host: str) -> None:
    if problem_of(host):
        return
    target = parse_url(f"https://{host.removeprefix('*.')}/")
    assert target.literal is None
    assert target.host == host.removeprefix("*.")


@settings(max_examples=30)
@given(NAMES, NAMES)
def test_an_entry_matches_itself_and_a_wildcard_matches_subdomains(a: str, b: str) -> None:
    assert covers(a, a)
    assert covers(a, b) == (a == b)
    assert covers(f"*.{a}", f"{b}.{a}")
    assert covers(f"*.{a}", f"*.{b}.{a}")
    assert covers(f"*.{a}", f"*.{a}")
    assert not covers(f"*.{a}", a)
    assert not covers(f"*.{a}", f"x{a}")
    assert not covers(a, f"*.{a}")
    assert not covers(f"{b}.{a}", f"*.{a}")


@settings(max_examples=30)
@given(st.lists(NAMES, min_size=1, max_size=3), NAMES)
def test_a_policy_allows_the_listed_connections(hosts: list[str], other: str) -> None:
    policy = NetworkPolicy(allowed=True, hosts=tuple(hosts))
    assert policy.refused(hosts) == []
    assert policy.refused([other]) == ([] if listed(other, hosts) else [other])
    assert NetworkPolicy(allowed=True).refused([other]) == []
