"""A folder of Markdown files for memory blocks, with a state file for the last synchronisation."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from strata.cli.failures import UsageError
from strata.cli.memory.markdown import (
    BlockFile,
    DocumentError,
    NoFrontMatterError,
    parse,
    render,
)

STATE_FILE = ".strata-memory.json"
SUFFIX = ".md"
THEIRS_SUFFIX = ".md.theirs"
"""A label may contain dots, so this name must not end like the name of a memory file."""

CHANGED_MEANWHILE = "the file was changed meanwhile and was not overwritten: pull again"

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SyncedFile:
    """State of a file when it last matched its block.

    Attributes:
        file: Its name.
        revision: Revision of the block.
        sha256: Hash of the file that is rendered from the block at that revision.
    """

    file: str
    revision: int
    sha256: str


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A Markdown file with its content.

    Attributes:
        name: Its name.
        data: Its bytes.
        document: Its parsed content, with the label from its name; None if it cannot be parsed.
        problem: Why it cannot be parsed; otherwise empty.
        foreign: True if it is not a memory file.
    """

    name: str
    data: bytes
    document: BlockFile | None
    problem: str = ""
    foreign: bool = False


class Files:
    """The files of a folder, by name and by the block id in their front matter.

    Args:
        files: The files.
    """

    def __init__(self, files: Sequence[MemoryFile]) -> None:
        self.all = files
        self._by_name = {file.name: file for file in files}
        self._by_block: dict[str, list[MemoryFile]] = {}
        for file in files:
            if file.document is not None and file.document.block_id:
                self._by_block.setdefault(file.document.block_id, []).append(file)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def claiming(self, block_id: str) -> Sequence[MemoryFile]:
        """Returns the files with this block id in their front matter."""
        return self._by_block.get(block_id, ())

    def of_block(self, block: BlockFile, entry: SyncedFile | None) -> MemoryFile | None:
        """Returns the file of a block: one with its id, else one with its name."""
        named_file = self._by_name.get(file_name(block.label))
        claiming = self.claiming(block.block_id)
        if claiming:
            return named_file if named_file in claiming else claiming[0]
        if named_file is not None or entry is None:
            return named_file
        return self._unclaimed(entry.file)

    def of_lost_block(self, block_id: str, entry: SyncedFile) -> MemoryFile | None:
        """Returns the file of a block that the agent no longer has."""
        claiming = self.claiming(block_id)
        return claiming[0] if claiming else self._unclaimed(entry.file)

    def _unclaimed(self, name: str) -> MemoryFile | None:
        file = self._by_name.get(name)
        claims = file is not None and file.document is not None and file.document.block_id
        return None if claims else file


class MemoryFolder:
    """Markdown files of the blocks of one agent.

    Args:
        path: The folder; it need not exist until something is written.

    Attributes:
        path: The folder.
        agent_id: The agent whose memory it contains; empty if unknown.
        entries: State of each file at the last synchronisation, by block id.

    Raises:
        UsageError: The path is not a folder, or its state file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.agent_id = ""
        self.entries: dict[str, SyncedFile] = {}
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is not a folder.")
        self._load()

    def belong_to(self, agent_id: str) -> None:
        """Assigns the folder to an agent; the state of another agent's files is dropped."""
        if self.agent_id != agent_id:
            self.entries.clear()
        self.agent_id = agent_id

    def read(self) -> list[MemoryFile]:
        """Reads every Markdown file, in the order of names."""
        if not self.path.exists():
            return []
        return [
            self._read(path)
            for path in sorted(self.path.iterdir())
            if path.name.endswith(SUFFIX) and not path.name.startswith(".") and path.is_file()
        ]

    def write(self, name: str, document: BlockFile) -> None:
        """Writes a file atomically, unless it has this content already."""
        data = render(document)
        target = self.path / name
        if not target.is_file() or target.read_bytes() != data:
            self._put(name, data)

    def in_step(self, document: BlockFile) -> None:
        """Records that the file of this document matches its block, with no conflict left."""
        name = file_name(document.label)
        digest = hashlib.sha256(render(document)).hexdigest()
        self.entries[document.block_id] = SyncedFile(name, document.revision, digest)

    def write_theirs(self, document: BlockFile) -> str:
        """Writes a block to a file next to the conflicting one, and returns the name."""
        name = f"{document.label}{THEIRS_SUFFIX}"
        self._put(name, render(document))
        return name

    def drop_theirs(self, label: str) -> None:
        """Removes the file that was written next to a conflicting one."""
        (self.path / f"{label}{THEIRS_SUFFIX}").unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Removes a file."""
        (self.path / name).unlink(missing_ok=True)

    def holds(self, file: MemoryFile) -> bool:
        """Whether a file still has the content that was read."""
        try:
            return (self.path / file.name).read_bytes() == file.data
        except FileNotFoundError:
            return False

    def unchanged(self, file: MemoryFile, entry: SyncedFile | None) -> bool:
        """Whether a file is unchanged since it last matched its block."""
        return entry is not None and hashlib.sha256(file.data).hexdigest() == entry.sha256

    def twin(self, name: str) -> str:
        """Returns the file that a case-insensitive disk opens for `name`; empty for none."""
        if not (self.path / name).exists():
            return ""
        names = {path.name for path in self.path.iterdir()}
        if name in names:
            return ""
        return next((other for other in names if other.casefold() == name.casefold()), "")

    def save(self) -> None:
        """Writes the state file."""
        if not self.path.exists() and not self.entries:
            return
        document = {
            "format": _FORMAT,
            "agent_id": self.agent_id,
            "blocks": {key: asdict(entry) for key, entry in sorted(self.entries.items())},
        }
        data = (json.dumps(document, indent=2) + "\n").encode()
        target = self.path / STATE_FILE
        if not target.exists() or target.read_bytes() != data:
            self._put(STATE_FILE, data)

    def _load(self) -> None:
        file = self.path / STATE_FILE
        try:
            document = json.loads(file.read_bytes())
            entries = dict(_entries(document))
            agent_id = document["agent_id"]
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{file} is damaged. Remove it: the next pull creates it again, and treats every "
                "file as changed."
            ) from error
        self.agent_id, self.entries = agent_id, entries

    def _read(self, path: Path) -> MemoryFile:
        data = path.read_bytes()
        label = path.name.removesuffix(SUFFIX)
        try:
            document = parse(data)
        except NoFrontMatterError as error:
            return MemoryFile(path.name, data, None, str(error), foreign=True)
        except DocumentError as error:
            return MemoryFile(path.name, data, None, str(error))
        if not document.label:
            document = replace(document, label=label)
        if document.label != label:
            problem = (
                f'says that its label is "{document.label}". Name the file '
                f"{file_name(document.label)}, or write label: {label}."
            )
            return MemoryFile(path.name, data, None, problem)
        return MemoryFile(path.name, data, document)

    def _put(self, name: str, data: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            # mkstemp creates private files; these get the usual permissions.
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(self.path / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def file_name(label: str) -> str:
    """Returns the file name for a label; labels contain only characters allowed in names."""
    return f"{label}{SUFFIX}"


def _entries(document: Any) -> Iterator[tuple[str, SyncedFile]]:
    if document["format"] != _FORMAT:
        raise ValueError("another format")
    for key, value in document["blocks"].items():
        yield key, SyncedFile(str(value["file"]), int(value["revision"]), str(value["sha256"]))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
