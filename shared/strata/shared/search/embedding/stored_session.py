"""ONNX Runtime sessions whose weights are mapped from files that a first process stores.

ONNX Runtime rearranges the weights of matrix products for the processor, and keeps the result on
the heap of each process. It can also store the result. Later processes map it, so that they share
its pages and the system can drop them; they start faster, too. Decision 0189.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from strata.shared.logs import get_logger
from strata.shared.mapped_pages import Mappings, release_pages_below
from strata.shared.processors import processor_features
from strata.shared.search.embedding.onnx_session import open_graph, open_stored_graph
from strata.shared.search.embedding.prepared_arrays import (
    Arrays,
    checksum_of_rest,
    default_folder,
)

_log = get_logger(__name__)
_GRAPH, _WEIGHTS, _CHECKS = "graph.onnx", "graph.weights", "checks.npz"
_RESULT, _CHECKSUMS = "result", "checksums"
# Change this when sessions are stored in another way: those of earlier versions are then replaced.
_VERSION = 1
# On the same processor both results are equal; with weights in another order they are far apart.
_TOLERANCE = 1e-3
_Floats = npt.NDArray[np.float32]
# By folder. They are never closed: when pages are released, no other thread may unmap the files.
_open_sessions: dict[Path, GraphSession] = {}
# One is opened at a time: a second one of the same files would be closed.
_opening = threading.Lock()


@dataclass(frozen=True, slots=True)
class GraphSession:
    """A session of a graph whose weights are on the heap, or mapped from files.

    Attributes:
        session: The session.
        folder: Folder of the mapped files; None if the weights are on the heap.
    """

    session: ort.InferenceSession
    folder: Path | None = None

    def run(self, inputs: Arrays) -> list[Any]:
        """Returns the results of the graph for its inputs."""
        results: list[Any] = self.session.run(None, dict(inputs))
        return results

    def release_pages(self) -> None:
        """Removes the pages of mapped weights from this process; the next run maps them again."""
        if self.folder is not None:
            # ONNX Runtime maps the files privately and never changes the weights.
            release_pages_below(self.folder, Mappings.PRIVATE)


def stored_session(
    name: str,
    key: str,
    graph: bytes,
    weights: Callable[[], Arrays],
    sample: Arrays,
    folder: Path | None = None,
) -> GraphSession:
    """Returns a session with mapped weights, which are stored if they are not yet.

    Weights for another processor or another release of ONNX Runtime are not used: they may be in
    another order. Where the folder cannot be written, or the features of the processor are
    unknown, the weights are on the heap.

    Args:
        name: Name of the model, the start of the names of its folders.
        key: Identifies the weights.
        graph: The model; its weights are declared as external data.
        weights: Returns the weights by name.
        sample: Inputs of the graph. Stored weights are used only if the first result for these is
            the one that was stored with them.
        folder: Folder of the folders; None for the folder of the installation.
    """
    features = processor_features()
    if not features:
        return GraphSession(open_graph(graph, weights()))
    identity = [_VERSION, key, hashlib.sha256(graph).hexdigest(), ort.__version__]
    identity += [platform.machine(), *sorted(features)]
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    root = folder or default_folder()
    path = root / f"{name}-{digest}"
    with _opening:
        stored = _stored(path, sample)
        if stored is None and _store(path, graph, weights, sample):
            # Those of other weights, and incomplete ones of processes that ended.
            for other in root.glob(f"{name}-*"):
                if other != path:
                    shutil.rmtree(other, ignore_errors=True)
            stored = _stored(path, sample)
    return stored or GraphSession(open_graph(graph, weights()))


def _stored(path: Path, sample: Arrays) -> GraphSession | None:
    """Returns the stored session; removes it and returns None if it is damaged."""
    if path in _open_sessions or not path.exists():
        return _open_sessions.get(path)
    try:
        with (path / _CHECKS).open("rb") as file, np.load(file) as checks:
            result, checksums = checks[_RESULT], checks[_CHECKSUMS].tolist()
        if _checksums(path) == checksums:
            session = GraphSession(open_stored_graph(path / _GRAPH), path)
            if _is_close(session.run(sample)[0], result):
                _open_sessions[path] = session
                return session
        problem = "other content"
    except Exception as error:  # noqa: BLE001 - those of ONNX Runtime have no class in common
        problem = str(error)
    _log.warning("stored session of a model damaged", path=str(path), error=problem)
    shutil.rmtree(path, ignore_errors=True)
    return None


def _store(path: Path, graph: bytes, weights: Callable[[], Arrays], sample: Arrays) -> bool:
    """Stores a session in a folder, which must not exist; returns whether it exists now."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
    try:
        temporary.mkdir(parents=True)
        session = open_graph(graph, weights(), store_as=(temporary / _GRAPH, _WEIGHTS))
        checks = {
            _RESULT: session.run(None, dict(sample))[0],
            _CHECKSUMS: np.array(_checksums(temporary), np.uint32),
        }
        np.savez(temporary / _CHECKS, **checks)
        temporary.rename(path)
    except Exception as error:  # noqa: BLE001 - as above; a full disk is one of these
        # Another process may have stored the same at once.
        if not path.exists():
            _log.info("session of a model not stored", path=str(path), error=str(error))
            return False
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _checksums(path: Path) -> list[int]:
    checksums = []
    for name in (_GRAPH, _WEIGHTS):
        with (path / name).open("rb", buffering=0) as file:
            checksums.append(checksum_of_rest(file))
    return checksums


def _is_close(result: _Floats, expected: _Floats) -> bool:
    return result.shape == expected.shape and bool(
        np.allclose(result, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
    )
