"""Fetching the model file from a configured address, with a real HTTP server."""

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.standalone.chat_model.assets import ModelAssembler, UrlSource
from strata.standalone.chat_model.manifest import ModelFile, Part
from strata.standalone.chat_model.progress import Cancellation, LocalModelError, ignore

CONTENT = bytes(range(250)) * 10


def model() -> ModelFile:
    pieces = [CONTENT[at : at + 1000] for at in range(0, len(CONTENT), 1000)]
    parts = tuple(Part("p", "m", len(p), hashlib.sha256(p).hexdigest()) for p in pieces)
    return ModelFile("demo.gguf", "Demo", hashlib.sha256(CONTENT).hexdigest(), parts)


@contextlib.contextmanager
def file_server(
    *, ranges: bool = True, cut_after: int | None = None
) -> Iterator[tuple[str, list[str | None]]]:
    asked: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            asked.append(wanted)
            first, last = 0, len(CONTENT) - 1
            if ranges and wanted:
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            self.send_response(206 if ranges else 200)
            self.send_header("Content-Length", str(last - first + 1))
            self.end_headers()
            body = CONTENT[first : last + 1]
            if cut_after is not None and len(asked) > cut_after:
                body = body[:10]
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/model.gguf", asked
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def little_spare_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.standalone.chat_model.assets._SPARE_BYTES", 0)


def test_parts_are_downloaded_as_ranges(tmp_path: Path) -> None:
    with file_server() as (url, asked):
        path = ModelAssembler(model(), tmp_path, [UrlSource(url)]).ensure(ignore, Cancellation())
    assert path.read_bytes() == CONTENT
    assert asked == ["bytes=0-999", "bytes=1000-1999", "bytes=2000-2499"]


def test_download_resumes_after_a_cut(tmp_path: Path) -> None:
    with file_server(cut_after=1) as (url, _), pytest.raises(LocalModelError, match="1 of 3 parts"):
        ModelAssembler(model(), tmp_path, [UrlSource(url)]).ensure(ignore, Cancellation())
    with file_server() as (url, asked):
        ModelAssembler(model(), tmp_path, [UrlSource(url)]).ensure(ignore, Cancellation())
    assert asked == ["bytes=1000-1999", "bytes=2000-2499"]


def test_after_a_server_without_ranges_the_next_source_is_used(tmp_path: Path) -> None:
    with file_server(ranges=False) as (plain, _), file_server() as (good, asked):
        sources = [UrlSource("http://127.0.0.1:1/x"), UrlSource(plain), UrlSource(good)]
        path = ModelAssembler(model(), tmp_path, sources).ensure(ignore, Cancellation())
    assert path.read_bytes() == CONTENT
    assert len(asked) == 3


def test_every_source_that_failed_is_named(tmp_path: Path) -> None:
    with file_server(ranges=False) as (plain, _):
        sources = [UrlSource("http://127.0.0.1:1/x"), UrlSource(plain)]
        assembler = ModelAssembler(model(), tmp_path, sources)
        with pytest.raises(LocalModelError) as caught:
            assembler.ensure(ignore, Cancellation())
    assert "answered 200 to a range request" in str(caught.value)
    assert "onnect" in str(caught.value)
