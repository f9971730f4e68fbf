"""Calls with allowed hosts reach only these, as root and as the user nobody."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import idna
import psutil
import pytest
import pytest_asyncio

from certificates import self_signed
from integration.sandbox.attacks import source
from integration.sandbox.families import children, descendants
from integration.sandbox.jails import ROOT, Worker, readable
from strata.shared.sandbox import Isolation, Limits, RunStatus, SandboxRun
from strata.shared.web.url_guard import Guard
from strata.tool_runner.egress.proxy import EgressProxy, ProxyLimits
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox
from strata.tool_runner.sandbox.program import landlock, syscalls
from web_servers import Names, RawServer, ok, raw_server, redirect

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTS = ["api.example.com", "*.example.org", "inside.example.com", "meta.example.com"]
NAMES = {
    "api.example.com": ["127.0.0.1"],
    "a.b.example.org": ["127.0.0.1"],
    "example.org": ["127.0.0.1"],
    "other.example.com": ["127.0.0.1"],
    "inside.example.com": ["10.0.0.1"],
    "meta.example.com": ["127.0.0.1", "169.254.169.254"],
}
BYTES = 4 << 20
# Not in the sandbox's tables: asm/unistd_64.h and asm-generic/unistd.h.
UNSHARE = {"x86_64": 272, "aarch64": 97}[syscalls.machine()]
FETCH = """
import http.client, json, socket, urllib.error, urllib.request
def get(url, data=None):
    try:
        with urllib.request.urlopen(url, data) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
    except OSError as error:
        return [0, str(error)]
def f(urls):
    return {url: get(url) for url in urls}
"""

HELD = """
import socket
def f(port):
    held = [socket.create_connection(("127.0.0.1", 3128)) for _ in range(5)]
    held[0].sendall(f"GET http://api.example.com:{port}/ HTTP/1.1\\r\\n\\r\\n".encode())
    return held[0].recv(15).decode()
"""


@dataclass
class Place:
    """Servers on loopback, and a sandbox whose calls may reach them."""

    plain: RawServer
    secure: RawServer
    closed: RawServer
    worker: Worker | None = None

    async def run(self, *arguments: Any, **fields: Any) -> Any:
        assert self.worker is not None
        return await asyncio.to_thread(self.worker.run, *arguments, **fields)

    async def value(self, *arguments: Any, **fields: Any) -> Any:
        assert self.worker is not None
        fields = {"hosts": HOSTS, **fields}
        return await asyncio.to_thread(self.worker.value, *arguments, **fields)

    async def get(self, *urls: str) -> dict[str, Any]:
        responses: dict[str, Any] = await self.value(FETCH, {"urls": urls})
        return responses


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user can read."""
    with TemporaryDirectory(dir="/var/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["own user", "nobody"])
async def place(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Place]:
    other_user = request.param == "nobody"
    if other_user and (os.geteuid() != 0 or not readable(ROOT)):
        pytest.skip("the service cannot be started as another user here")
    pem, key = self_signed(folder, ["api.example.com", "*.b.example.org"])
    pem.chmod(0o644)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pem, key)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(raw_server())
        secure = await stack.enter_async_context(raw_server(serving))
        closed = await stack.enter_async_context(raw_server())
        for server in (plain, secure, closed):
            server.answers["/"] = ok(b"hello")
        network = {
            "names": NAMES,
            "ports": [plain.port, secure.port],
            "limits": {"bytes": BYTES, "head_s": 1.0},
            "libraries": str(Path(idna.__file__).parents[1]),
        }
        worker = await asyncio.to_thread(
            partial(
                Worker, other_user=other_user, restricted=False, network=network, ca_file=str(pem)
            )
        )
        try:
            if worker.level is not Isolation.NAMESPACES:
                pytest.skip(f"this machine gives no namespaces: {worker.words}")
            yield Place(plain, secure, closed, worker)
        finally:
            await asyncio.to_thread(worker.close)


async def test_hosts_of_the_list_are_reached_by_http_and_https(place: Place) -> None:
    urls = [
        place.plain.url("/", "api.example.com"),
        place.plain.url("/", "a.b.example.org"),
        f"https://api.example.com:{place.secure.port}/",
        f"https://A.B.example.org.:{place.secure.port}/",
    ]
    responses = await place.get(*urls)
    # The proxy forwards a name with a final dot, but the certificate may not match such a name.
    last = responses.pop(urls[-1])
    assert responses == {url: [200, "hello"] for url in urls[:-1]}
    assert last == [200, "hello"] or "CERTIFICATE" in last[1].upper()


async def test_hosts_outside_the_list_are_refused(place: Place) -> None:
    before = len(place.plain.heads), len(place.secure.heads)
    plain, secure = place.plain.port, place.secure.port
    refused = [
        f"http://other.example.com:{plain}/",
        f"https://other.example.com:{secure}/",
        f"http://example.org:{plain}/",
        f"http://xexample.org:{plain}/",
        f"http://api.example.com.example.net:{plain}/",
        f"http://inside.example.com:{plain}/",
        f"http://meta.example.com:{plain}/",
        f"http://api.example.com:{place.closed.port}/",
        f"https://api.example.com:{place.closed.port}/",
        "http://api.example.com:22/",
        "http://metadata.google.internal/",
    ]
    numbers = ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]",
               "[::ffff:127.0.0.1]", "169.254.169.254", "0", "127.0.0.1.", "localhost")  # fmt: skip
    refused += [f"http://{number}:{plain}/" for number in numbers]
    refused += [f"https://{number}:{secure}/" for number in numbers]
    responses = await place.get(*refused)
    assert responses.keys() == set(refused)
    wrong = {u: w for u, w in responses.items() if w[0] not in (400, 403) and " 403 " not in w[1]}
    assert wrong == {}
    assert "not by addresses" in responses[f"http://169.254.169.254:{plain}/"][1]
    assert (len(place.plain.heads), len(place.secure.heads)) == before
    assert place.closed.heads == []


async def test_a_redirect_to_another_host_is_refused(place: Place) -> None:
    place.plain.answers["/away"] = redirect(place.plain.url("/", "other.example.com"))
    place.plain.answers["/here"] = redirect(place.plain.url("/", "a.b.example.org"))
    away, here = (place.plain.url(path, "api.example.com") for path in ("/away", "/here"))
    responses = await place.get(away, here)
    assert responses[away][0] == 403
    assert "do not name other.example.com" in responses[away][1]
    assert responses[here] == [200, "hello"]


async def test_no_other_network_access_is_possible(place: Place) -> None:
    body = """
    def f(port, unshare):
        def connect(family, address, kind=socket.SOCK_STREAM, protocol=0):
            with socket.socket(family, kind, protocol) as s:
                s.settimeout(2)
                s.connect(address)
                return s
        def fast_open():
            with socket.socket() as s:
                return s.sendto(b"x", 0x20000000, ("127.0.0.1", port))
        def listen(proxy):
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
        def option(level, name):
            with socket.socket() as s:
                s.setsockopt(level, name, b"tls")
        inet = socket.AF_INET
        ways = {
            "loopback": lambda: connect(inet, ("127.0.0.1", port)),
            "metadata": lambda: connect(inet, ("169.254.169.254", 80)),
            "outside": lambda: connect(inet, ("192.0.2.1", 3128)),
            "ipv6": lambda: connect(socket.AF_INET6, ("::1", port)),
            "udp": lambda: connect(inet, ("10.0.0.2", 53), socket.SOCK_DGRAM),
            "dns": lambda: socket.getaddrinfo("api.example.com", 80),
            "raw": lambda: connect(inet, ("127.0.0.1", 0), socket.SOCK_RAW, 1),
            "mptcp": lambda: connect(inet, ("127.0.0.1", 3128), socket.SOCK_STREAM, 262),
            "sctp": lambda: connect(inet, ("127.0.0.1", 3128), socket.SOCK_STREAM, 132),
            "unix": lambda: connect(socket.AF_UNIX, "\\0database"),
            "netlink": lambda: connect(16, (0, 0), socket.SOCK_RAW),
            "packet": lambda: connect(17, ("lo", 0), socket.SOCK_RAW),
            "fast open": fast_open,
            "listen": lambda: listen(port),
            "ulp": lambda: option(6, 31),
            "ip option": lambda: option(0, 64),
            "namespace": lambda: call(unshare, 0x40000000) == 0 or 1 / 0,
        }
        found = {name: attempt(way) for name, way in ways.items()}
        found["proxy"] = attempt(lambda: connect(inet, ("127.0.0.1", 3128)))
        return found
    """
    result = await place.value(source(body), {"port": place.plain.port, "unshare": UNSHARE})
    assert result.pop("proxy")[0] == "got"
    assert {way: what for way, what in result.items() if what[0] != "stopped"} == {}


async def test_sockets_of_other_kinds_cannot_be_created(place: Place) -> None:
    """Tests the seccomp filter only: neither namespaces nor Landlock refuse these sockets."""
    body = """
    def f():
        def fast_open():
            with socket.socket() as s:
                return s.sendto(b"x", 0x20000000, ("127.0.0.1", 3128))
        kinds = {
            "ipv6": (socket.AF_INET6, socket.SOCK_STREAM), "udp": (2, socket.SOCK_DGRAM),
            "unix": (1, socket.SOCK_STREAM), "unix datagrams": (1, socket.SOCK_DGRAM),
            "raw": (2, socket.SOCK_RAW, 1), "mptcp": (2, socket.SOCK_STREAM, 262),
            "netlink": (16, socket.SOCK_RAW), "packet": (17, socket.SOCK_RAW),
        }
        found = {name: attempt(lambda: socket.socket(*kind)) for name, kind in kinds.items()}
        found["tcp"] = attempt(lambda: socket.socket(2, socket.SOCK_STREAM, 6).close())
        with socket.socket() as s:
            for level, name in ((1, 9), (1, 20), (6, 1)):
                s.setsockopt(level, name, struct.pack("ll", 1, 0))
            # Not on the list (SO_LINGER), and programs for the kernel (SO_ATTACH_FILTER,
            # SO_ATTACH_REUSEPORT_CBPF).
            for name in (13, 26, 51):
                found[f"option {name}"] = attempt(lambda: s.setsockopt(1, name, bytes(16)))
        return {**found, "fast open": attempt(fast_open)}
    """
    result = await place.value(source(body))
    assert result.pop("tcp") == ["got", "None"]
    assert {kind: what for kind, what in result.items() if what[1] != "PermissionError"} == {}


async def test_a_call_without_hosts_has_no_socket(place: Place) -> None:
    body = """
    def f():
        found = {"socket": attempt(socket.socket), "proxy": [k for k in os.environ if "PROXY" in k]}
        return {**found, "loopback": attempt(lambda: socket.create_connection(("127.0.0.1", 3128)))}
    """
    assert await place.value(source(body), hosts=[]) == {
        "socket": ["stopped", "PermissionError"],
        "loopback": ["stopped", "PermissionError"],
        "proxy": [],
    }


async def test_endless_and_slow_answers_are_cut_with_an_error(place: Place) -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    place.plain.answers.update({"/endless": endless, "/silent": silent})
    many, none = (place.plain.url(path, "api.example.com") for path in ("/endless", "/silent"))
    responses = await place.get(many, place.plain.url("/", "api.example.com"))
    # A truncated answer is an error, never a shorter answer.
    assert responses[many][0] == 0
    assert responses[place.plain.url("/", "api.example.com")][0] == 429
    result = await place.run(
        FETCH, "f", {"urls": [none]}, hosts=HOSTS, limits={"wall_seconds": 1.0}
    )
    assert result.status is RunStatus.TIMEOUT
    assert await place.get(place.plain.url("/", "api.example.com"))


async def test_hosts_need_namespaces_and_a_proxy() -> None:
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    network = {"names": {}, "ports": [80], "libraries": str(Path(idna.__file__).parents[1])}
    start = partial(Worker, other_user=False, restricted=True, network=network)
    worker = await asyncio.to_thread(start)
    try:
        result = worker.run("def f():\n    return 1", hosts=HOSTS)
        assert result.status is RunStatus.REFUSED
        assert "need network namespaces" in result.detail
    finally:
        await asyncio.to_thread(worker.close)


async def test_nothing_is_left_of_a_hundred_calls() -> None:
    async with raw_server() as server:
        server.answers["/"] = ok(b"hello")
        guard = Guard(Names(), private_networks=["127.0.0.0/8"], ports=[server.port])
        proxies = partial(EgressProxy, admission=guard, limits=ProxyLimits())
        engines = children()
        sandbox = await JailSandbox.start(JailConfig(proxies=proxies, warm=2))
        if sandbox.isolation is not Isolation.NAMESPACES:
            await sandbox.close()
            pytest.skip("this machine gives no namespaces")
        run = SandboxRun(
            HELD,
            "f",
            f'{{"port": {server.port}}}',
            hosts=("api.example.com",),
            limits=Limits(wall_seconds=20),
        )
        me = psutil.Process()

        async def count() -> tuple[int, int]:
            # Wait until the spare processes for the next calls have been started again.
            for _ in range(200):
                seen = me.num_fds(), len(descendants(engines))
                await asyncio.sleep(0.02)
                if seen == (me.num_fds(), len(descendants(engines))):
                    return seen
            return seen

        try:
            assert (await sandbox.run(run)).value_json == '"HTTP/1.1 200 OK"'
            before = await count()
            for _ in range(20):
                results = await asyncio.gather(*(sandbox.run(run) for _ in range(5)))
                assert {r.value_json for r in results} == {'"HTTP/1.1 200 OK"'}
            for _ in range(200):
                after = await count()
                # There may be fewer descriptors, because connections of other tests end meanwhile.
                if after[0] <= before[0] and after[1] == before[1]:
                    break
            assert after[0] <= before[0]
            assert after[1] == before[1]
        finally:
            await sandbox.close()
