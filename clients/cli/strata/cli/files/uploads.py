"""Uploads files, and waits until they are parsed and indexed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.client import GatewayClient, new_request_id
from strata.cli.failures import UsageError, error_lines
from strata.cli.output import safe
from strata.protocol.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from strata.shared.convert.enums import enum_name

CHUNK_BYTES = 1 << 20

_FINAL_STATES = (pb.FILE_STATE_READY, pb.FILE_STATE_FAILED)
_MAX_WATCHES = 5

# Errors about one file; any other error ends the upload.
_ERRORS_OF_ONE_FILE = (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)


class ProgressDisplay(Protocol):
    """Shows the progress of the uploads."""

    def uploading(self, name: str, sent: int, size: int) -> None:
        """Shows that `sent` of `size` bytes of a file are sent."""
        ...

    def preparing(self, file: pb.File) -> None:
        """Shows that a file is being parsed or indexed, or is done."""
        ...

    def failed(self, name: str) -> None:
        """Shows that a file was refused."""
        ...


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Result of the upload of one file.

    Attributes:
        name: Its name in the folder.
        file: The latest state of the file; None if it was refused.
        problem: Why it was refused or cannot be parsed; empty if there is no problem.
    """

    name: str
    file: pb.File | None
    problem: str = ""


def checked_paths(paths: list[Path]) -> list[Path]:
    """Returns the files to upload.

    Raises:
        UsageError: One is missing or not a file, or two have the same name.
    """
    names: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name the files in it, such as {path}/*")
        if not path.is_file():
            raise UsageError(f"There is no file {path}.")
        if path.name in names:
            raise UsageError(f"{path} and {names[path.name]} have the same name.")
        names[path.name] = path
    return paths


async def upload(
    client: GatewayClient, folder: pb.Folder, path: Path, view: ProgressDisplay, *, replace: bool
) -> Uploaded:
    """Uploads one file."""
    header = pb.UploadFileHeader(
        request_id=new_request_id(), folder_id=folder.id, name=path.name, replace=replace
    )
    try:
        response = await client.files.UploadFile(_pieces(header, path, view))
    except _ERRORS_OF_ONE_FILE as error:
        view.failed(path.name)
        return Uploaded(path.name, None, error_lines(error)[0])
    view.preparing(response.file)
    return Uploaded(path.name, response.file, _problem(response.file))


async def wait(client: GatewayClient, uploaded: Uploaded, view: ProgressDisplay) -> Uploaded:
    """Follows a file until it is ready or has failed.

    Raises:
        UnavailableError: The watch broke repeatedly.
    """
    file = uploaded.file
    if file is None:
        return uploaded
    for attempt in range(_MAX_WATCHES):
        if file.state in _FINAL_STATES:
            break
        try:
            async for update in client.files.WatchFile(pb.WatchFileRequest(file_id=file.id)):
                file = update.file
                view.preparing(file)
        except UnavailableError:
            # A server that stops ends the stream; another one continues with the file.
            if attempt + 1 == _MAX_WATCHES:
                raise
    return Uploaded(uploaded.name, file, _problem(file))


async def _pieces(
    header: pb.UploadFileHeader, path: Path, view: ProgressDisplay
) -> AsyncIterator[pb.UploadFileRequest]:
    yield pb.UploadFileRequest(header=header)
    sent = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        view.uploading(path.name, 0, size)
        # Reading a chunk is short, and the event loop has nothing else to do.
        while chunk := file.read(CHUNK_BYTES):
            yield pb.UploadFileRequest(chunk=chunk)
            sent += len(chunk)
            view.uploading(path.name, sent, size)


def stage_of(file: pb.File) -> str:
    """Returns the state of a file, in words."""
    if file.state == pb.FILE_STATE_PARSING:
        return "being read"
    return enum_name(pb.FileState, file.state)


def state_of(file: pb.File) -> str:
    """Returns the state of a file with its progress."""
    if file.state == pb.FILE_STATE_INDEXING:
        return f"indexing {file.index_progress:.0%}"
    return stage_of(file)


def _problem(file: pb.File) -> str:
    if file.state == pb.FILE_STATE_FAILED:
        return file.error or "It cannot be read."
    return ""


class UploadBars:
    """A bar for each file, on a terminal.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def uploading(self, name: str, sent: int, size: int) -> None:
        """Shows how much is sent."""
        self._show(name, sent, size, f"uploading, {decimal(sent)} of {decimal(size)}")

    def preparing(self, file: pb.File) -> None:
        """Shows how much is indexed."""
        done = 1.0 if file.state == pb.FILE_STATE_READY else file.index_progress
        self._show(file.name, done, 1.0, state_of(file))

    def failed(self, name: str) -> None:
        """Shows that a file was refused."""
        self._show(name, 0, 1, "refused")

    def _show(self, name: str, done: float, total: float, state: str) -> None:
        if name not in self._tasks:
            # A name is not markup.
            label = safe(name).replace("[", r"\[")
            self._tasks[name] = self._progress.add_task(label, total=total, state=state)
        task = self._tasks[name]
        self._progress.update(task, completed=done, total=total or 1.0, state=state)


class UploadLines:
    """Prints a line for each step, if the output is not a terminal.

    Args:
        write: Called with each line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last_states: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return

    def uploading(self, name: str, sent: int, size: int) -> None:
        """Prints that a file is being sent."""
        self._print_state(name, f"uploading {decimal(size)}")

    def preparing(self, file: pb.File) -> None:
        """Prints each state once."""
        self._print_state(file.name, stage_of(file))

    def failed(self, name: str) -> None:
        """Prints that a file was refused."""
        self._print_state(name, "refused")

    def _print_state(self, name: str, state: str) -> None:
        if self._last_states.get(name) != state:
            self._last_states[name] = state
            self._write(f"{name}: {state}")
