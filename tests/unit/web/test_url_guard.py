# ruff: noqa: RUF001 - look-alikes are what some of this is about
"""The guard of URLs: public and internal addresses in all spellings."""

from __future__ import annotations

import ipaddress
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.protocol.errors import InvalidArgumentError
from strata.shared.web.addresses import check_addresses, is_public, read_networks
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard, Trusting, parse_url

PUBLIC = "93.184.216.34"


class Names:
    """A resolver with some names, and a public address for others; records questions."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = {
            name.replace("_", "."): list(addresses) for name, addresses in answers.items()
        }
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.get(host, [PUBLIC])


async def resolve(url: str, resolver: Names | None = None, **options: object) -> list[str]:
    guard = Guard(resolver or Names(), **options)  # type: ignore[arg-type]
    return [str(address) for address in await guard.resolve(parse_url(url))]


# Every one of these is refused before any look-up.
BAD_URLS = {
    "loopback": "http://127.0.0.1/",
    "loopback elsewhere in its network": "http://127.8.9.10/",
    "decimal IPv4": "http://2130706433/",
    "hexadecimal IPv4": "http://0x7f000001/",
    "hexadecimal parts": "http://0x7f.0x0.0x0.0x1/",
    "octal IPv4": "http://0177.0.0.1/",
    "octal with many zeros": "http://00000177.0.0.1/",
    "octal number": "http://017700000001/",
    "short IPv4, two parts": "http://127.1/",
    "short IPv4, three parts": "http://127.0.1/",
    "IPv4 with a final dot": "http://127.0.0.1./",
    "a bare hexadecimal prefix": "http://1.0x/",
    "five parts": "http://1.2.3.4.5/",
    "this host": "http://0.0.0.0/",
    "zero": "http://0/",
    "private class A": "http://10.0.0.1/",
    "private class B": "http://172.16.0.1/",
    "private class B, its end": "http://172.31.255.255/",
    "private class C": "http://192.168.1.1/",
    "carrier-grade NAT": "http://100.64.0.1/",
    "benchmark network": "http://198.18.0.1/",
    "protocol assignments": "http://192.0.0.8/",
    "documentation network": "http://203.0.113.7/",
    "multicast": "http://224.0.0.1/",
    "broadcast": "http://255.255.255.255/",
    "link-local": "http://169.254.1.1/",
    "metadata of most clouds": "http://169.254.169.254/latest/meta-data/",
    "metadata in decimal": "http://2852039166/",
    "metadata of AWS containers": "http://169.254.170.2/v2/credentials",
    "metadata of Alibaba": "http://100.100.100.200/latest/meta-data/",
    "metadata of Oracle": "http://192.0.0.192/opc/v1/",
    "wire server of Azure": "http://168.63.129.16/metadata",
    "metadata of AWS over IPv6": "http://[fd00:ec2::254]/",
    "metadata of GCP over IPv6": "http://[fd20:ce::254]/",
    "IPv6 loopback": "http://[::1]/",
    "IPv6 loopback in full": "http://[0:0:0:0:0:0:0:1]/",
    "IPv6 unspecified": "http://[::]/",
    "IPv4-mapped": "http://[::ffff:127.0.0.1]/",
    "IPv4-mapped in hexadecimal": "http://[::ffff:7f00:1]/",
    "IPv4-mapped metadata": "http://[::ffff:169.254.169.254]/",
    "IPv4-compatible": "http://[::127.0.0.1]/",
    "IPv4-translated": "http://[::ffff:0:127.0.0.1]/",
    "NAT64": "http://[64:ff9b::7f00:1]/",
    "NAT64 of metadata": "http://[64:ff9b::169.254.169.254]/",
    "NAT64, local use": "http://[64:ff9b:1::7f00:1]/",
    "6to4": "http://[2002:7f00:1::1]/",
    "Teredo": "http://[2001:0:7f00:1::1]/",
    "IPv6 benchmark network": "http://[2001:2::1]/",
    "IPv6 documentation": "http://[2001:db8::1]/",
    "IPv6 documentation, the new one": "http://[3fff::1]/",
    "unique local": "http://[fc00::1]/",
    "site-local": "http://[fec0::1]/",
    "IPv6 link-local": "http://[fe80::1]/",
    "IPv6 multicast": "http://[ff02::1]/",
    "zone id": "http://[fe80::1%25eth0]/",
    "zone id without escape": "http://[fe80::1%eth0]/",
    "zone id of a public address": "http://[2606:4700::1%251]/",
    "IPvFuture": "http://[v1.fe80::1]/",
    "IPv6 without brackets": "http://::1/",
    "brackets left open": "http://[::1/",
    "two hosts in brackets": "http://[::1].example.com/",
    "localhost": "http://localhost/",
    "localhost in capitals with a dot": "http://LOCALHOST./",
    "below localhost": "http://app.localhost/",
    "metadata name of GCP": "http://metadata.google.internal/computeMetadata/v1/",
    "metadata name of GCP, short": "http://metadata/",
    "metadata name with a dot": "http://metadata.google.internal./",
    "metadata name in capitals": "http://Metadata.Google.Internal/",
    "metadata name of GCP, the other": "http://metadata.goog/",
    "metadata name of AWS": "http://instance-data/latest/",
    "metadata name of Tencent": "http://metadata.tencentyun.com/",
    "API server of Kubernetes": "https://kubernetes.default.svc/api",
    "cluster name": "http://recall.strata.svc.cluster.local/",
    "internal suffix": "http://wiki.corp/",
    "another internal suffix": "http://db.internal/",
    "home network": "http://router.home.arpa/",
    "name without a dot": "http://postgres/",
    "onion": "http://abcdefg.onion/",
    "user name": "http://admin@example.com/",
    "user name and password": "http://user:secret@example.com/",
    "host that looks like a user": "http://example.com@127.0.0.1/",
    "empty user": "http://@127.0.0.1/",
    "escaped at sign": "http://example.com%40127.0.0.1/",
    "port of SSH": "http://example.com:22/",
    "port of Redis": "http://example.com:6379/",
    "port zero": "http://example.com:0/",
    "port too large": "http://example.com:65536/",
    "port that wraps to 80": "http://example.com:65616/",
    "port that is not a number": "http://example.com:8o/",
    "port in full-width digits": "http://example.com:８０/",
    "negative port": "http://example.com:-80/",
    "two ports": "http://example.com:80:22/",
    "file": "file:///etc/passwd",
    "gopher": "gopher://example.com/_x",
    "ftp": "ftp://example.com/",
    "data": "data:text/html,hello",
    "javascript": "javascript:alert(1)",
    "dict": "dict://example.com:11211/stat",
    "unix socket": "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "websocket": "ws://example.com/",
    "jar": "jar:http://example.com!/",
    "view-source": "view-source:http://example.com/",
    "no scheme": "example.com/",
    "scheme-relative": "//example.com/",
    "one slash": "http:/example.com/",
    "three slashes": "http:///example.com/",
    "no slashes": "http:example.com",
    "no host": "http://",
    "only a port": "http://:80/",
    "empty": "",
    "full-width digits": "http://１２７.0.0.1/",
    "full-width dot": "http://127。0。0。1/",
    "circled digits": "http://①②⑦.⓪.⓪.①/",
    "circled letters": "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "full-width letters": "http://ｅｘａｍｐｌｅ.com/",
    "soft hyphen in a public name": "http://exam\u00adple.com/",
    "long s": "http://localhoſt/",
    "Kelvin sign": "http://\u212aubernetes.default.svc/",
    "Arabic digits": "http://١٢٧.0.0.1/",
    "soft hyphen": "http://local\u00adhost/",
    "zero-width space": "http://local\u200bhost/",
    "right-to-left override": "http://\u202elocalhost/",
    "care-of sign": "http://example.com℀127.0.0.1/",
    "Punycode that is none": "http://xn--a.example.com/",
    "Punycode of a digit": "http://xn--127-.0.0.1/",
    "escaped host": "http://%6c%6f%63%61%6c%68%6f%73%74/",
    "escaped dots": "http://127%2e0%2e0%2e1/",
    "escaped slash in the host": "http://example.com%2f@127.0.0.1/",
    "backslash": "http://example.com\\@127.0.0.1/",
    "backslashes for slashes": "http:\\\\127.0.0.1\\",
    "NUL": "http://127.0.0.1\x00.example.com/",
    "NUL in the path": "http://example.com/\x00",
    "line break": "http://example.com/\r\nHost: 127.0.0.1",
    "tab in the host": "http://local\thost/",
    "space in the host": "http://example.com 127.0.0.1/",
    "space before the at sign": "http://example.com &@127.0.0.1#@example.com/",
    "half a surrogate": "http://example.com/\ud800",
    "comma in the host": "http://example.com,127.0.0.1/",
    "semicolon in the host": "http://example.com;127.0.0.1/",
    "label too long": f"http://{'a' * 64}.com/",
    "name too long": f"http://{'a.' * 130}com/",
    "empty label": "http://example..com/",
    "two final dots": "http://example.com../",
    "hyphen first": "http://-example.com/",
    "too long": "http://example.com/" + "a" * 5000,
}


@pytest.mark.parametrize("url", BAD_URLS.values(), ids=BAD_URLS.keys())
async def test_an_invalid_url_is_refused_without_resolving_its_name(url: str) -> None:
    resolver = Names()

    with pytest.raises(ForbiddenUrlError):
        await resolve(url, resolver)

    assert resolver.asked == []


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("https://example.com", "https://example.com/"),
        ("  HTTPS://EXAMPLE.com.:443/a?b=c#d\n", "https://example.com/a?b=c"),
        ("http://example.com?q", "http://example.com/?q"),
        ("http://example.com#x@127.0.0.1", "http://example.com/"),
        ("http://example.com/@127.0.0.1", "http://example.com/@127.0.0.1"),
        ("https://münchen.de/straße?ü=1", "https://xn--mnchen-3ya.de/stra%C3%9Fe?%C3%BC=1"),
        ("https://xn--mnchen-3ya.de/", "https://xn--mnchen-3ya.de/"),
        ("https://en.wikipedia.org/wiki/A_(b)", "https://en.wikipedia.org/wiki/A_(b)"),
        ("https://example.com/%2e%2e/a%20b", "https://example.com/%2e%2e/a%20b"),
        ("http://1.1.1.1/", "http://1.1.1.1/"),
        ("https://[2606:4700::1111]/", "https://[2606:4700::1111]/"),
        ("https://a_b.example.co.uk/", "https://a_b.example.co.uk/"),
        ("https://0x7f.example.com/", "https://0x7f.example.com/"),
    ],
)
async def test_a_valid_url_has_one_canonical_form(url: str, canonical: str) -> None:
    assert parse_url(url).url == canonical
    assert await resolve(url)


async def test_the_refusal_is_an_invalid_argument_of_the_caller() -> None:
    with pytest.raises(InvalidArgumentError):
        await resolve("http://127.0.0.1/")


async def test_credentials_in_a_url_are_named_as_the_reason() -> None:
    with pytest.raises(ForbiddenUrlError, match="user name or password"):
        await resolve("http://user:secret@example.com/")


async def test_a_name_is_resolved_once_with_all_its_addresses() -> None:
    resolver = Names(two_example_com=[PUBLIC, "2606:4700::1111", PUBLIC])

    assert await resolve("https://two.example.com/", resolver) == [PUBLIC, "2606:4700::1111"]
    assert resolver.asked == ["two.example.com"]


@pytest.mark.parametrize(
    "inside", ["127.0.0.1", "10.0.0.1", "::1", "::ffff:10.0.0.1", "fe80::1%eth0", "2606:4700::1%1"]
)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_forbidden_address_refuses_the_name(inside: str, place: int) -> None:
    addresses = [PUBLIC, "2606:4700::1111"]
    addresses.insert(place, inside)

    with pytest.raises(ForbiddenUrlError) as refused:
        await resolve("https://trap.example.com/", Names(trap_example_com=addresses))

    assert inside not in str(refused.value)


async def test_a_name_without_an_address_is_not_found() -> None:
    with pytest.raises(FetchError, match="cannot be found"):
        await resolve("https://no.example.com/", Names(no_example_com=[]))


async def test_a_failed_resolution_is_a_readable_error() -> None:
    async def failing(host: str, port: int) -> list[str]:
        raise OSError("no name server")

    with pytest.raises(FetchError, match="cannot be found"):
        await Guard(failing).resolve(parse_url("https://example.com/"))


async def test_a_name_with_too_many_addresses_is_refused() -> None:
    addresses = [f"93.184.{number}.34" for number in range(100)]
    with pytest.raises(FetchError, match="too many"):
        await resolve("https://many.example.com/", Names(many_example_com=addresses))


async def test_a_private_network_is_reached_only_if_allowed() -> None:
    names = Names(
        wiki_corp=["10.1.2.3"], db_corp=["10.2.0.1"], odd_corp=[PUBLIC], wiki=["10.1.0.1"]
    )
    opened: dict[str, Any] = {"private_networks": ["10.1.0.0/16"]}

    assert await resolve("http://10.1.2.3/", **opened) == ["10.1.2.3"]
    assert await resolve("http://wiki.corp/", names, **opened) == ["10.1.2.3"]
    assert await resolve("http://wiki/", names, **opened) == ["10.1.0.1"]
    for url in (
        "http://db.corp/",
        "http://odd.corp/",
        "http://10.2.0.1/",
        "http://[::ffff:10.1.2.3]/",
        "http://169.254.169.254/",
        "http://metadata.google.internal/",
    ):
        with pytest.raises(ForbiddenUrlError):
            await resolve(url, names, **opened)


@pytest.mark.parametrize(
    "network",
    [
        "169.254.0.0/16",
        "169.254.169.254",
        "100.100.100.200",
        "fe80::/10",
        "224.0.0.0/8",
        "nonsense",
    ],
)
def test_no_setting_allows_cloud_metadata_services(network: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|appear"):
        Guard(Names(), private_networks=[network])


async def test_a_wide_allowed_network_does_not_include_cloud_metadata() -> None:
    for url in ("http://169.254.169.254/", "http://100.100.100.200/", "http://[fd00:ec2::254]/"):
        with pytest.raises(ForbiddenUrlError):
            await resolve(url, private_networks=["0.0.0.0/0", "::/0"])


async def test_ports_are_opened_by_name() -> None:
    assert await resolve("http://example.com:8080/", ports=[8080])
    with pytest.raises(ForbiddenUrlError, match="Port 80 "):
        await resolve("http://example.com/", ports=[8080])


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/b?c", "https://example.com/b?c"),
        ("//other.example.com/x", "https://other.example.com/x"),
        ("?q=1", "https://example.com/a/page?q=1"),
        ("http://other.example.com", "http://other.example.com/"),
    ],
)
def test_a_redirect_location_is_resolved_against_the_url(location: str, expected: str) -> None:
    assert parse_url("https://example.com/a/page").join(location).url == expected


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "\\\\127.0.0.1\\x",
        "/a\tb",
        "ftp://example.com/",
        "http://u@example.com",
    ],
)
def test_a_redirect_is_checked_like_a_url(location: str) -> None:
    with pytest.raises(ForbiddenUrlError):
        parse_url("https://example.com/").join(location)


async def test_urls_of_the_operator_may_have_private_addresses() -> None:
    trusting = Trusting(Names(searxng=["10.0.0.7"]))

    assert [str(a) for a in await trusting.resolve(parse_url("http://searxng:8080/"))] == [
        "10.0.0.7"
    ]
    assert [str(a) for a in await trusting.resolve(parse_url("http://127.0.0.1/"))] == ["127.0.0.1"]


async def test_the_resolver_of_the_system_finds_this_machine() -> None:
    resolver = SystemResolver()
    try:
        assert "127.0.0.1" in await resolver("127.0.0.1", 80)
    finally:
        resolver.close()


FORBIDDEN_V4 = st.sampled_from(
    [
        "127.0.0.0/8",
        "10.0.0.0/8",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "0.0.0.0/8",
        "100.64.0.0/10",
        "198.18.0.0/15",
        "224.0.0.0/4",
        "240.0.0.0/4",
    ]
).flatmap(lambda text: st.ip_addresses(network=text))


def _spell(address: ipaddress.IPv4Address, parts: int, bases: list[str], capital: bool) -> str:
    """Writes an address in any of the ways that inet_aton reads."""
    number = int(address)
    values = [number >> (24 - 8 * index) & 255 for index in range(parts - 1)]
    values.append(number & (1 << 8 * (5 - parts)) - 1)
    forms = {"d": "{}", "o": "0{:o}", "O": "0000{:o}", "x": "0x{:x}", "X": "0x000{:X}"}
    text = ".".join(forms[base].format(value) for base, value in zip(bases, values, strict=False))
    return text.upper() if capital else text


@given(
    FORBIDDEN_V4,
    st.integers(1, 4),
    st.lists(st.sampled_from("doOxX"), min_size=4, max_size=4),
    st.booleans(),
    st.sampled_from(["", "."]),
)
@security_examples
async def test_every_spelling_of_a_forbidden_ipv4_address_is_refused(
    address: ipaddress.IPv4Address, parts: int, bases: list[str], capital: bool, end: str
) -> None:
    resolver = Names()
    with pytest.raises(ForbiddenUrlError):
        await resolve(f"http://{_spell(address, parts, bases, capital)}{end}/", resolver)
    assert resolver.asked == []


_CARRIERS = {
    "mapped": "::ffff:0:0/96",
    "compatible": "::/96",
    "translated": "::ffff:0:0:0/96",
    "nat64": "64:ff9b::/96",
}


@security_examples
@given(FORBIDDEN_V4, st.sampled_from(sorted(_CARRIERS)), st.booleans(), st.booleans())
async def test_no_ipv6_form_carries_a_forbidden_address(
    address: ipaddress.IPv4Address, carrier: str, in_full: bool, capital: bool
) -> None:
    base = int(ipaddress.IPv6Network(_CARRIERS[carrier]).network_address)
    carried = ipaddress.IPv6Address(base | int(address))
    text = carried.exploded if in_full else carried.compressed
    with pytest.raises(ForbiddenUrlError):
        await resolve(f"http://[{text.upper() if capital else text}]/")
    six_to_four = ipaddress.IPv6Address(0x2002 << 112 | int(address) << 80 | 1)
    with pytest.raises(ForbiddenUrlError):
        await resolve(f"http://[{six_to_four}]/")


@given(st.ip_addresses())
@example(ipaddress.ip_address("192.88.99.1"))
@security_examples
def test_every_public_address_is_global_for_python(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public(address):
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


@given(st.ip_addresses(v=4))
@security_examples
def test_every_global_ipv4_address_is_public_with_few_exceptions(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assume(address.is_global and not address.is_multicast)
    kept_out = ("192.88.99.0/24", "168.63.129.16/32", "192.0.0.0/24")
    assume(not any(address in ipaddress.ip_network(network) for network in kept_out))
    assert is_public(address)


@security_examples
@given(st.ip_addresses(network="2000::/3"))
def test_global_unicast_ipv6_addresses_are_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    special = ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
    inside = any(address in ipaddress.ip_network(network) for network in special)
    assert is_public(address) is not inside


@security_examples
@given(st.text(max_size=80) | st.from_regex(r"https?://[^/]{0,30}(/.*)?", fullmatch=True))
async def test_any_url_is_parsed_or_refused_and_never_reaches_private_addresses(text: str) -> None:
    resolver = Names()
    try:
        target = parse_url(text)
        addresses = await Guard(resolver).resolve(target)
    except ForbiddenUrlError:
        return
    assert all(is_public(address) for address in addresses)
    assert target.url.isascii()
    assert parse_url(target.url) == target


@security_examples
@given(st.lists(st.ip_addresses().map(str), max_size=5))
def test_addresses_are_accepted_together_or_not_at_all(texts: list[str]) -> None:
    public = [is_public(ipaddress.ip_address(text)) for text in texts]
    if texts and all(public):
        assert {str(a) for a in check_addresses(texts)} == {
            str(ipaddress.ip_address(t)) for t in texts
        }
    else:
        with pytest.raises(ForbiddenUrlError):
            check_addresses(texts)


def test_network_settings_are_parsed() -> None:
    assert [str(network) for network in read_networks([" 10.0.0.1 ", "fd12::/48"])] == [
        "10.0.0.1/32",
        "fd12::/48",
    ]


async def test_all_ports_take_no_memory() -> None:
    tracemalloc.start()
    try:
        guard = Guard(Names(), ports=range(1, 65_536))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 100_000
    assert await guard.resolve(parse_url("https://example.com:8443/"))
