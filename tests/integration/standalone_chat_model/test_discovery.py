"""Discovery of local model servers, with real HTTP servers on real ports."""

import contextlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from child_processes import SOURCE_PATH
from strata.standalone.chat_model.choice import Source, choose
from strata.standalone.chat_model.discovery import UsualAddress, chat_models, discover
from strata.standalone.chat_model.settings import LocalDemoMode
from strata.standalone.compose.model import USUAL_ADDRESSES

PATIENCE = 20.0
"""Time limit in seconds for servers that answer; these tests do not measure how fast."""


@contextlib.contextmanager
def serving(
    body: bytes, *, status: int = 200, hangs: bool = False, location: str = ""
) -> Iterator[UsualAddress]:
    left = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if hangs:
                left.wait(30)
            with contextlib.suppress(ConnectionError):
                known = self.path == "/v1/models"
                self.send_response(status if known else 404)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield UsualAddress("Test", f"http://127.0.0.1:{server.server_address[1]}/v1")
        left.set()
        server.shutdown()
        thread.join()


def listing(*names: str) -> bytes:
    entries = [{"id": name, "object": "model"} for name in names]
    return json.dumps({"object": "list", "data": entries}).encode()


async def test_finds_servers_in_the_order_of_the_ports() -> None:
    with serving(listing("b")) as first, serving(listing("embed-x", "c", "d")) as second:
        servers = await discover([first, second], PATIENCE)
    assert [(server.base_url, server.models) for server in servers] == [
        (first.base_url, ("b",)),
        (second.base_url, ("c", "d")),
    ]


async def test_the_first_server_found_is_chosen() -> None:
    with serving(listing("qwen3:8b")) as port:
        servers = await discover([UsualAddress("Nobody", "http://127.0.0.1:1/v1"), port], PATIENCE)
        choice = choose([], servers, LocalDemoMode.AUTO)
    assert choice.source is Source.LOCAL_SERVER
    assert choice.model == "qwen3:8b"
    assert port.base_url in choice.sentence


@pytest.mark.parametrize(
    "body",
    [
        b"<html>welcome</html>",
        b"[]",
        b'{"data": "none"}',
        b'{"data": [{"name": "x"}, 3, {"id": 4}, {"id": " "}]}',
        listing("nomic-embed-text", "whisper-1"),
        listing(),
        b"\xff" * 10,
    ],
)
async def test_a_server_without_a_chat_model_is_ignored(body: bytes) -> None:
    with serving(body) as port:
        assert await discover([port]) == []


async def test_servers_that_refuse_or_redirect_are_ignored() -> None:
    with (
        serving(listing("a"), status=401) as locked,
        serving(listing("b")) as other,
        serving(b"", status=302, location=f"{other.base_url}/models") as moved,
    ):
        assert await discover([locked, moved]) == []


async def test_a_server_that_hangs_does_not_delay_the_others() -> None:
    with serving(listing("slow"), hangs=True) as slow, serving(listing("quick")) as quick:
        # The time limit of one answer, within which the fast server must have answered.
        servers = await discover([slow, quick], 1.5)
    assert [server.models for server in servers] == [("quick",)]


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    with serving(listing(*(f"model-{number}" for number in range(40_000)))) as port:
        assert await discover([port]) == []


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving(listing("a")) as port:
        assert len(await discover([port], PATIENCE)) == 1


def test_the_default_addresses_are_those_of_known_servers() -> None:
    assert [(address.product, address.base_url) for address in USUAL_ADDRESSES] == [
        ("Ollama", "http://127.0.0.1:11434/v1"),
        ("LM Studio", "http://127.0.0.1:1234/v1"),
        ("llama.cpp", "http://127.0.0.1:8080/v1"),
        ("vLLM", "http://127.0.0.1:8000/v1"),
    ]


def test_models_that_cannot_chat_are_omitted() -> None:
    names = ["qwen3:8b", "bge-m3", "text-embedding-3", "jina-reranker", "gpt-oss:20b"]
    assert chat_models(listing(*names)) == ("qwen3:8b", "gpt-oss:20b")


# In a separate process, because tests share the loaded certificates (`shared_certificates`).
COUNT_LOADS = """
import asyncio, ssl

loads = []
ssl.SSLContext.load_verify_locations = lambda *files, **_: loads.append(files)
ssl.SSLContext.load_default_certs = lambda *purpose: loads.append(purpose)
from strata.standalone.chat_model.discovery import UsualAddress, discover

asyncio.run(discover([UsualAddress("Ollama", "http://127.0.0.1:1/v1")]))
print(len(loads))
"""


@pytest.mark.child_process
def test_the_certificates_of_the_system_are_not_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT_LOADS],
        env={"PYTHONPATH": SOURCE_PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "0", done.stderr
