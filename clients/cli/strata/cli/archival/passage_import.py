"""Uploads the passages of a JSON Lines file, and resumes after a lost connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from google.protobuf.json_format import ParseDict, ParseError

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.failures import UsageError
from strata.protocol.errors import (
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    UnavailableError,
)
from strata.shared.convert.json_fields import check_fields
from strata.shared.json_text import parse_request_json

_BATCH = 500
_BATCH_BYTES = 2 << 20
_ATTEMPTS = 4
_PAUSE_S = 0.5
_PASSAGE_FIELD = re.compile(r"passages?(?:\[(\d+)\])?\.?")


class ImportProgress(Protocol):
    """Shows the progress of an import."""

    def show(self, received: int, total: int) -> None:
        """Shows that the server has stored `received` of `total` passages."""
        ...


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """The archive that receives the passages: one by id, or the own archive of an agent."""

    agent_id: str = ""
    archive_id: str = ""


@dataclass(frozen=True, slots=True)
class PassageFile:
    """A file of passages, one JSON object per line.

    Attributes:
        digest: SHA-256 of its content.
        total: Number of passages in it.
    """

    path: Path
    digest: str
    total: int

    @classmethod
    def of(cls, path: Path) -> PassageFile:
        """Reads a file and counts its passages.

        Raises:
            UsageError: It cannot be read or contains no passage.
        """
        digest, total = sha256(), 0
        try:
            with path.open("rb") as file:
                for line in file:
                    digest.update(line)
                    total += bool(line.strip())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
        if not total:
            raise UsageError(f"{path} contains no passage.")
        return cls(path, digest.hexdigest(), total)

    def passages(self) -> Iterator[tuple[int, pb.NewPassage]]:
        """Yields passages with their line numbers.

        Raises:
            UsageError: A line is not a passage.
        """
        with self.path.open(encoding="utf-8-sig") as file:
            try:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield number, self._passage(number, line)
            except UnicodeDecodeError as error:
                raise UsageError(f"{self.path} is not UTF-8.") from error

    def _passage(self, number: int, line: str) -> pb.NewPassage:
        try:
            value = parse_request_json(line.encode())
            check_fields(value, pb.NewPassage.DESCRIPTOR)
            return ParseDict(value, pb.NewPassage())
        except (ParseError, ValueError, TypeError, AttributeError) as error:
            problem = str(error).splitlines()[0]
            raise UsageError(f"Line {number} of {self.path} is not a passage: {problem}") from error

    def request_id(self, target: ImportTarget) -> str:
        """Returns the idempotency key of the import of this content into this archive."""
        identity = f"{self.digest}\0{target.agent_id}\0{target.archive_id}"
        return f"import-{sha256(identity.encode()).hexdigest()}"


class Import:
    """The import of one file.

    Args:
        client: Client of the gateway.
        source: The file.
        target: The archive that receives the passages.
        request_id: Idempotency key of the import; an interrupted import with this key resumes.
        view: Shows the progress.
    """

    def __init__(
        self,
        client: GatewayClient,
        source: PassageFile,
        target: ImportTarget,
        request_id: str,
        view: ImportProgress,
    ) -> None:
        self._client = client
        self._source = source
        self._target = target
        self._request_id = request_id
        self._view = view
        self._durable = 0
        self._lines: list[int] = []
        self._wrong_line: UsageError | None = None

    async def run(self) -> pb.UploadPassagesResponse:
        """Uploads the passages that are not stored yet, and returns the counts of the whole import.

        Raises:
            UsageError: A line is not a passage.
            InvalidArgumentError: A passage was refused; the message has its line.
            UnavailableError: The connection broke repeatedly without any progress.
        """
        attempt, durable_before = 1, -1
        while True:
            try:
                return await self._stream()
            except UnavailableError:
                # Attempts are counted from the last progress on.
                attempt = attempt + 1 if self._durable == durable_before else 2
                durable_before = self._durable
                if attempt > _ATTEMPTS:
                    raise
                await asyncio.sleep(_PAUSE_S * attempt)
            except (InvalidArgumentError, FailedPreconditionError) as error:
                raise self._error_with_lines(error) from error
            except asyncio.CancelledError:
                if self._wrong_line is None:
                    raise
                raise self._wrong_line from None

    async def _stream(self) -> pb.UploadPassagesResponse:
        # Each message waits for the response to the one before, so an error is about the last one.
        responses: asyncio.Queue[pb.UploadPassagesResponse] = asyncio.Queue()
        response = pb.UploadPassagesResponse()
        async for response in self._client.passages.UploadPassages(self._messages(responses)):
            self._durable = response.received_count
            self._view.show(response.received_count, self._source.total)
            responses.put_nowait(response)
        return response

    async def _messages(
        self, responses: asyncio.Queue[pb.UploadPassagesResponse]
    ) -> AsyncIterator[pb.UploadPassagesRequest]:
        yield pb.UploadPassagesRequest(
            request_id=self._request_id,
            agent_id=self._target.agent_id,
            archive_id=self._target.archive_id,
        )
        durable = (await responses.get()).received_count
        if durable:
            yield pb.UploadPassagesRequest(skip_count=durable)
            await responses.get()
        try:
            for batch in self._batches(durable):
                yield batch
                await responses.get()
        except UsageError as error:
            # Raising cancels the call; a stream that ends normally would complete the import.
            self._wrong_line = error
            raise

    def _batches(self, durable: int) -> Iterator[pb.UploadPassagesRequest]:
        batch, size = pb.UploadPassagesRequest(), 0
        lines: list[int] = []
        for position, (line, passage) in enumerate(self._source.passages()):
            if position < durable:
                continue
            length = passage.ByteSize()
            if lines and (len(lines) == _BATCH or size + length > _BATCH_BYTES):
                self._lines = lines
                yield batch
                batch, lines, size = pb.UploadPassagesRequest(), [], 0
            batch.passages.append(passage)
            lines.append(line)
            size += length
        if lines:
            self._lines = lines
            yield batch

    def _error_with_lines(
        self, error: InvalidArgumentError | FailedPreconditionError
    ) -> InvalidArgumentError | FailedPreconditionError:
        violations = [
            FieldViolation(self._field_with_line(violation.field), violation.description)
            for violation in error.violations
        ]
        return type(error)(
            f"After {self._durable} passages: {error.message}",
            reason=error.reason,
            metadata=error.metadata,
            violations=violations,
        )

    def _field_with_line(self, field: str) -> str:
        match = _PASSAGE_FIELD.match(field)
        if not match or not self._lines:
            return field
        line = self._lines[int(match[1] or 0)]
        return f"line {line}, {field[match.end() :] or 'passage'}"
