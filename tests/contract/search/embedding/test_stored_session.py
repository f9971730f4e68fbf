"""Sessions of ONNX Runtime whose weights are stored once, and mapped later."""

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import encoder_graph
from encoder_graph import GRAPH, SAMPLE, Weights
from strata.shared.search.embedding import sentence_encoder, stored_session
from strata.shared.search.embedding.onnx_session import open_graph, open_stored_graph
from strata.shared.search.embedding.stored_session import GraphSession

LONGER = {"embeddings": np.ones((40, sentence_encoder.DIM), np.float32)}

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def known_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The features of the processor are known, as on Linux."""
    monkeypatch.setattr(stored_session, "processor_features", lambda: frozenset({"feature"}))


@pytest.fixture
def expected() -> list[np.ndarray]:
    """The results of a session with its weights on the heap."""
    session = open_graph(GRAPH, Weights()())
    return [session.run(None, inputs)[0] for inputs in (SAMPLE, LONGER)]


def load(
    monkeypatch: pytest.MonkeyPatch, folder: Path, key: str = "key"
) -> tuple[GraphSession, int]:
    """Loads the session as a new process; returns it, and how often the weights were read."""
    monkeypatch.setattr(stored_session, "_open_sessions", {})
    weights = Weights()
    opened = stored_session.stored_session("encoder", key, GRAPH, weights, SAMPLE, folder)
    return opened, weights.count


def results(opened: GraphSession) -> list[np.ndarray]:
    return [opened.run(inputs)[0] for inputs in (SAMPLE, LONGER)]


def is_equal(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(map(np.array_equal, left, right))


def folders(root: Path) -> list[str]:
    return [path.name for path in root.iterdir()]


def test_session_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[np.ndarray]
) -> None:
    root = tmp_path / "a" / "b"
    loaded = [load(monkeypatch, root) for _ in range(3)]
    assert [count for _, count in loaded] == [1, 0, 0]
    for opened, _ in loaded:
        assert opened.folder is not None
        assert is_equal(results(opened), expected)
    assert len(folders(root)) == 1


def test_process_opens_a_stored_session_once(tmp_path: Path) -> None:
    first, second = (
        stored_session.stored_session("encoder", "key", GRAPH, Weights(), SAMPLE, tmp_path)
        for _ in range(2)
    )
    assert first.session is second.session


def test_threads_open_a_stored_session_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one would be closed, and its files unmapped, while pages are released."""
    load(monkeypatch, tmp_path)
    monkeypatch.setattr(stored_session, "_open_sessions", {})
    opened: list[Path] = []
    both = threading.Barrier(2)

    def open_slowly(path: Path) -> onnxruntime.InferenceSession:
        opened.append(path)
        # Time for the other thread to open it, too.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return open_stored_graph(path)

    monkeypatch.setattr(stored_session, "open_stored_graph", open_slowly)
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(
                stored_session.stored_session, "encoder", "key", GRAPH, Weights(), SAMPLE, tmp_path
            )
            for _ in range(2)
        ]
        first, second = (call.result() for call in calls)
    assert first is second
    assert len(opened) == 1


@linux_only
def test_released_pages_are_mapped_again_and_were_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[np.ndarray]
) -> None:
    load(monkeypatch, tmp_path)
    opened, _ = load(monkeypatch, tmp_path)
    for _ in range(3):
        assert is_equal(results(opened), expected)
        used = pages(tmp_path)
        assert used["Rss"] > 1_000
        # Pages that a process changed are its own, and would be lost.
        assert used["Anonymous"] == 0
        opened.release_pages()
        assert pages(tmp_path)["Rss"] == 0


def pages(folder: Path) -> dict[str, int]:
    """Returns the sums for the mapped files of a folder, in kB."""
    sums: dict[str, int] = {}
    is_below = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            is_below = str(folder) in line
        elif is_below and values[-1] == "kB":
            sums[name[:-1]] = sums.get(name[:-1], 0) + int(values[0])
    return sums


@pytest.mark.parametrize("part", ["graph.onnx", "graph.weights", "checks.npz"])
@pytest.mark.parametrize("change", ["bit", "end", "empty", "missing"])
def test_damaged_session_is_replaced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: list[np.ndarray],
    part: str,
    change: str,
) -> None:
    load(monkeypatch, tmp_path)
    [path] = tmp_path.glob(f"*/{part}")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    match change:
        case "missing":
            path.unlink()
        case "bit":
            path.write_bytes(content)
        case _:
            path.write_bytes(path.read_bytes()[: -1 if change == "end" else 0])
    for count in (1, 0):
        opened, read = load(monkeypatch, tmp_path)
        assert read == count
        assert is_equal(results(opened), expected)


def test_session_with_other_results_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[np.ndarray]
) -> None:
    """As that of a processor that needs the weights in another order."""
    load(monkeypatch, tmp_path)
    [path] = tmp_path.glob("*/checks.npz")
    with np.load(path) as checks:
        changed = {**checks, "result": checks["result"] + 0.01}
    np.savez(path, **changed)
    opened, read = load(monkeypatch, tmp_path)
    assert read == 1
    assert is_equal(results(opened), expected)


@pytest.mark.parametrize("changed", ["key", "processor", "runtime"])
def test_session_of_something_else_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    load(monkeypatch, tmp_path)
    before = folders(tmp_path)
    if changed == "processor":
        monkeypatch.setattr(stored_session, "processor_features", lambda: frozenset({"other"}))
    if changed == "runtime":
        monkeypatch.setattr(onnxruntime, "__version__", "0.0.1")
    key = "other" if changed == "key" else "key"
    assert [load(monkeypatch, tmp_path, key)[1] for _ in range(2)] == [1, 0]
    after = folders(tmp_path)
    assert len(after) == 1
    assert after != before


def test_sessions_of_other_models_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [tmp_path / "other-0123", tmp_path / "encoder.arrays"]
    for path in others:
        path.mkdir()
    load(monkeypatch, tmp_path)
    assert all(path.exists() for path in others)


def test_weights_are_on_the_heap_if_the_processor_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[np.ndarray]
) -> None:
    monkeypatch.setattr(stored_session, "processor_features", frozenset)
    opened, _ = load(monkeypatch, tmp_path)
    assert opened.folder is None
    opened.release_pages()
    assert is_equal(results(opened), expected)
    assert folders(tmp_path) == []


def test_weights_are_on_the_heap_if_the_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[np.ndarray]
) -> None:
    (tmp_path / "file").write_text("no folder")
    opened, _ = load(monkeypatch, tmp_path / "file")
    assert opened.folder is None
    assert is_equal(results(opened), expected)


_LOAD = """
import resource, sys
from pathlib import Path

from encoder_graph import GRAPH, SAMPLE, Weights
from strata.shared.search.embedding import stored_session

stored_session.processor_features = lambda: frozenset({"feature"})
folder, limit = Path(sys.argv[1]), int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.stdin.readline()
opened = stored_session.stored_session("encoder", "key", GRAPH, Weights(), SAMPLE, folder)
print(float(opened.run(SAMPLE)[0].sum()), opened.folder is not None)
"""


def start_loading(folder: Path, limit: int = 0) -> subprocess.Popen[str]:
    paths = [str(Path(encoder_graph.__file__).parent), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", _LOAD, str(folder), str(limit)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


@pytest.mark.child_process
def test_full_disk_leaves_the_weights_on_the_heap(
    tmp_path: Path, expected: list[np.ndarray]
) -> None:
    for limit in (1_000_000, 100):
        output, _ = start_loading(tmp_path, limit).communicate("\n")
        assert output.split() == [str(float(expected[0].sum())), "False"]
        assert folders(tmp_path) == []


@pytest.mark.child_process
def test_processes_that_store_concurrently_leave_one_session(
    tmp_path: Path, expected: list[np.ndarray]
) -> None:
    processes = [start_loading(tmp_path) for _ in range(3)]
    outputs = [process.communicate("\n")[0].split() for process in processes]
    assert outputs == 3 * [[str(float(expected[0].sum())), "True"]]
    assert len(folders(tmp_path)) == 1
