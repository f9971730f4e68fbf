"""Arrays that one process computes and stores, and that later ones map from the file.

Processes share the pages of a mapped file, and the system can drop them. The files are in the
Python installation, as compiled modules are: users who can change it write them, all users read
them, and they are removed with it.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import secrets
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from strata.shared.logs import get_logger

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

_log = get_logger(__name__)
_MAGIC = b"STRATA01"
# Magic, CRC-32 of all that follows; bytes of the header. The header is JSON: the key, and type,
# shape and offset of each array. Offsets count from the first multiple of `_ALIGNMENT` after it.
_PREAMBLE = struct.Struct("<8sI")
_SIZE = struct.Struct("<Q")
_HEADER_START = _PREAMBLE.size + _SIZE.size
_ALIGNMENT = 64
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PreparedArrays:
    """Arrays that were computed, or are mapped from a file.

    Attributes:
        arrays: The arrays by name; those of a file are read-only.
        mapping: The mapped file; None if the arrays were computed.
    """

    arrays: Arrays
    mapping: mmap.mmap | None = None

    def release_pages(self) -> None:
        """See `release_pages`."""
        if self.mapping is not None:
            release_pages(self.mapping)


def release_pages(mapping: mmap.mmap) -> None:
    """Removes the pages of a mapped file from this process, as far as the system can do that.

    Pages that are read again come from the page cache, in a microsecond for 16 of them.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def default_folder() -> Path:
    """Returns the folder of the prepared files of this installation."""
    return Path(sys.prefix) / "share" / "strata" / "embedding"


def prepared_arrays(
    name: str, key: str, compute: Callable[[], Arrays], folder: Path | None = None
) -> PreparedArrays:
    """Returns arrays from a file, or computes them and stores them in it.

    A file that is missing, damaged or of another key is replaced atomically, so that processes
    that start at once do not disturb each other. Where the folder cannot be written, the arrays
    are computed in every process.

    Args:
        name: Name of the file.
        key: Identifies all that the arrays depend on: their sources and how they are computed.
        compute: Computes the arrays.
        folder: Folder of the file; None for the folder of the installation.
    """
    path = (folder or default_folder()) / name
    stored = _stored(path, key)
    if stored is not None:
        return stored
    arrays = compute()
    try:
        _store(path, key, arrays)
    except OSError as error:
        _log.info("prepared arrays not stored", path=str(path), error=error.strerror)
        return PreparedArrays(arrays)
    return _stored(path, key) or PreparedArrays(arrays)


def _stored(path: Path, key: str) -> PreparedArrays | None:
    """Returns the arrays of a file; None if it is missing, damaged or of another key."""
    try:
        with path.open("rb", buffering=0) as file:
            if not _is_intact(file):
                _log.warning("prepared arrays damaged", path=str(path))
                return None
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None
    (size,) = _SIZE.unpack_from(content, _PREAMBLE.size)
    header_end = _HEADER_START + size
    header = json.loads(content[_HEADER_START:header_end])
    if header["key"] != key:
        return None
    start = _aligned(header_end)
    arrays = {
        name: np.frombuffer(content, kind, math.prod(shape), start + offset).reshape(shape)
        for name, (kind, shape, offset) in header["arrays"].items()
    }
    return PreparedArrays(arrays, content)


def _is_intact(file: FileIO) -> bool:
    # The file is read before it is mapped: pages that are only checked are not mapped then.
    preamble = file.read(_PREAMBLE.size)
    if len(preamble) < _PREAMBLE.size:
        return False
    magic, checksum = _PREAMBLE.unpack(preamble)
    if magic != _MAGIC:
        return False
    return checksum_of_rest(file) == int(checksum)


def checksum_of_rest(file: FileIO) -> int:
    """Returns the CRC-32 of what follows in an open file."""
    checksum = 0
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    while size := file.readinto(buffer):
        checksum = zlib.crc32(buffer[:size], checksum)
    return checksum


def _store(path: Path, key: str, arrays: Arrays) -> None:
    entries: dict[str, tuple[str, tuple[int, ...], int]] = {}
    blocks: list[memoryview | bytes] = []
    offset = 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array)
        entries[name] = (content.dtype.str, content.shape, offset)
        padding = _aligned(content.nbytes) - content.nbytes
        blocks += [content.reshape(-1).view(np.uint8).data, bytes(padding)]
        offset += content.nbytes + padding
    header = json.dumps({"key": key, "arrays": entries}).encode()
    header_end = _HEADER_START + len(header)
    gap = bytes(_aligned(header_end) - header_end)
    parts = [_SIZE.pack(len(header)), header, gap, *blocks]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
    try:
        with temporary.open("xb") as file:
            file.write(_PREAMBLE.pack(_MAGIC, checksum))
            file.writelines(parts)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
