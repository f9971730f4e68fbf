"""A chat server whose engine needs no model file, and a package index that is a folder."""

import base64
import hashlib
import os
import threading
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from strata.standalone.chat_model.serving.replies import ChatService
from strata.standalone.chat_model.serving.requests import Sampling
from strata.standalone.chat_model.serving.web import ChatServer

API_KEY = "a-test-key"


@dataclass
class ScriptedEngine:
    """An engine that replies with a fixed text; each character of a prompt is a token."""

    context_tokens: int = 200
    reused_tokens: int = 3
    pieces: list[bytes] = field(default_factory=lambda: [b"Hel", b"lo ", b"w\xc3", b"\xb6rld"])
    proceed: threading.Event = field(default_factory=threading.Event)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    prompts: list[str] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)

    def encode(self, segments: Sequence[tuple[str, bool]]) -> list[int]:
        return [ord(letter) for text, _ in segments for letter in text]

    def generate(self, tokens: list[int], sampling: Sampling) -> Iterator[bytes | None]:
        if sampling.schema == '{"type": "impossible"}':
            raise ValueError("no such type")
        if sampling.seed == 666:
            raise RuntimeError("decode failed")
        self.prompts.append("".join(map(chr, tokens)))
        self.samplings.append(sampling)
        self.begun.release()
        try:
            while not self.proceed.wait(0.01):
                yield None
            yield from self.pieces
        finally:
            self.ended.release()


@dataclass
class Running:
    engine: ScriptedEngine
    server: ChatServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def client(self, key: str = API_KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def running() -> Iterator[Running]:
    engine = ScriptedEngine()
    engine.proceed.set()
    with ChatServer(0, API_KEY, ChatService(engine, "local-demo", waiting=2)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Running(engine, server)
        engine.proceed.set()
        server.shutdown()
        thread.join()


@dataclass
class Index:
    """A folder that pip and uv use as their only package index."""

    folder: Path

    def add(self, name: str, version: str, files: dict[str, bytes]) -> None:
        """Writes a wheel with metadata and a record of hashes, so that every client accepts it."""
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        files = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tags.encode()}
        lines = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items()]
        files[f"{info}/RECORD"] = f"{''.join(lines)}{info}/RECORD,,\n".encode()
        with zipfile.ZipFile(self.folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for path, data in files.items():
                wheel.writestr(path, data)

    def clear(self) -> None:
        for wheel in self.folder.iterdir():
            wheel.unlink()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(folder))
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    return Index(folder)


@pytest.fixture
def capable_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the checks of the machine: compiler, processor, disk space and memory."""
    monkeypatch.setattr("strata.standalone.chat_model.runtime._COMPILERS", ("sh",))
    monkeypatch.setattr("strata.standalone.chat_model.runtime._NEEDED_BYTES", 0)
    monkeypatch.setattr("strata.standalone.chat_model.assets._SPARE_BYTES", 0)
    monkeypatch.setattr("strata.standalone.chat_model.cpu.available_memory", lambda: None)
    monkeypatch.setattr("strata.standalone.chat_model.cpu.Cpu.too_old", False)
