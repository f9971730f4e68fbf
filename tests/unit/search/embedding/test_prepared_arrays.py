"""Arrays that are computed once, stored in a file and mapped later."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata.shared.search.embedding.prepared_arrays import Arrays, prepared_arrays

ARRAYS: Arrays = {
    "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bytes": np.arange(77, dtype=np.int8),
    "numbers": np.array([1 << 40], np.int64),
    "none": np.zeros((0, 3), np.uint16),
}


class Computation:
    """Counts how often the arrays are computed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Arrays:
        self.count += 1
        return ARRAYS


def load(folder: Path, key: str = "key") -> int:
    """Loads the arrays, checks them, and returns how often they were computed."""
    compute = Computation()
    arrays = prepared_arrays("test.arrays", key, compute, folder).arrays
    assert list(arrays) == list(ARRAYS)
    for name, expected in ARRAYS.items():
        assert arrays[name].dtype == expected.dtype
        assert np.array_equal(arrays[name], expected)
    return compute.count


def test_arrays_are_computed_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert [load(folder) for _ in range(3)] == [1, 0, 0]
    assert [path.name for path in folder.iterdir()] == ["test.arrays"]


def test_mapped_arrays_are_read_only_and_aligned(tmp_path: Path) -> None:
    arrays = prepared_arrays("test.arrays", "key", Computation(), tmp_path).arrays
    for array in arrays.values():
        assert not array.flags.writeable
        assert array.flags.aligned


def test_another_key_replaces_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, "first") == 1
    assert load(tmp_path, "second") == 1
    assert load(tmp_path, "second") == 0
    assert load(tmp_path, "first") == 1


def test_any_changed_bit_is_detected(tmp_path: Path) -> None:
    load(tmp_path)
    path = tmp_path / "test.arrays"
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert load(tmp_path) == 1, place
        assert path.read_bytes() == content


@pytest.mark.parametrize("keep", [0, 1, 19, 20, 100, -64, -1])
def test_a_truncated_file_is_replaced(tmp_path: Path, keep: int) -> None:
    load(tmp_path)
    path = tmp_path / "test.arrays"
    path.write_bytes(path.read_bytes()[:keep])
    assert [load(tmp_path), load(tmp_path)] == [1, 0]


@pytest.mark.parametrize("content", [b"", b"something else", bytes(10_000)])
def test_another_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "test.arrays").write_bytes(content)
    assert [load(tmp_path), load(tmp_path)] == [1, 0]


def test_arrays_are_computed_if_the_folder_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert [load(tmp_path / "file"), load(tmp_path / "file")] == [1, 1]


def test_a_replaced_file_stays_readable_where_it_is_mapped(tmp_path: Path) -> None:
    arrays = prepared_arrays("test.arrays", "key", Computation(), tmp_path).arrays
    load(tmp_path, "other")
    assert np.array_equal(arrays["bytes"], ARRAYS["bytes"])


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "test.arrays" / "no folder"):
        prepared = prepared_arrays("test.arrays", "key", Computation(), folder)
        prepared.release_pages()
        assert np.array_equal(prepared.arrays["bytes"], ARRAYS["bytes"])


_LOAD = """
import sys
from pathlib import Path

import numpy as np

from strata.shared.search.embedding.prepared_arrays import prepared_arrays

def compute():
    return {"numbers": np.arange(500_000, dtype=np.int64)}

sys.stdin.readline()
for number in range(20):
    arrays = prepared_arrays("test.arrays", str(number), compute, Path(sys.argv[1])).arrays
    assert np.array_equal(arrays["numbers"], compute()["numbers"])
"""


@pytest.mark.child_process
def test_processes_that_write_concurrently_leave_one_valid_file(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _LOAD, str(tmp_path)], stdin=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["test.arrays"]
