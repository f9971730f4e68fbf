"""Pull: updates the Markdown files of a folder from the memory blocks of an agent."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.failures import UsageError
from strata.cli.memory.blocks import version_at
from strata.cli.memory.document_merge import merge
from strata.cli.memory.folder import (
    CHANGED_MEANWHILE,
    Files,
    MemoryFile,
    MemoryFolder,
    SyncedFile,
    file_name,
)
from strata.cli.memory.markdown import BlockFile, document_of, document_of_version
from strata.cli.memory.sync_results import FileOutcome, FileSyncResult, both_sides, difference
from strata.shared.agent_mcp.blocks import blocks_of


class ConflictChoice(StrEnum):
    """The behaviour of a pull for a file that conflicts with its block."""

    REPORT = "report"
    MINE = "mine"
    THEIRS = "theirs"


class Pull:
    """One pull.

    A changed file is merged with its block or not changed; it is overwritten only with
    `ConflictChoice.THEIRS`.

    Args:
        client: The gateway.
        agent_id: The agent whose blocks are pulled.
        folder: The folder for the files.
        on_conflict: The behaviour for conflicts.
        delete: Remove the files of blocks that the agent no longer has.
        dry_run: Report the results without changing anything.

    Raises:
        UsageError: The folder contains the memory of another agent.
    """

    def __init__(
        self,
        client: GatewayClient,
        agent_id: str,
        folder: MemoryFolder,
        *,
        on_conflict: ConflictChoice = ConflictChoice.REPORT,
        delete: bool = False,
        dry_run: bool = False,
    ) -> None:
        if folder.agent_id not in ("", agent_id):
            raise UsageError(
                f"{folder.path} contains the memory of {folder.agent_id}, another agent. Pull into "
                "another folder."
            )
        self._client = client
        self._agent_id = agent_id
        self._folder = folder
        self._on_conflict = on_conflict
        self._delete = delete
        self._dry_run = dry_run
        self._files = Files(folder.read())

    async def run(self) -> list[FileOutcome]:
        """Pulls, and returns the result for each file."""
        blocks = await blocks_of(self._client, self._agent_id)
        if not self._dry_run:
            self._folder.belong_to(self._agent_id)
        try:
            outcomes = [await self._pull(block) for block in blocks]
            outcomes += self._lost_files({block.id for block in blocks})
        finally:
            if not self._dry_run:
                self._folder.save()
        return outcomes

    async def _pull(self, block: pb.Block) -> FileOutcome:
        theirs = document_of(block)
        entry = self._folder.entries.get(block.id)
        file = self._files.of_block(theirs, entry)
        if file is None:
            detail = "" if entry is None else "the file was missing"
            return self._write(None, theirs, theirs, FileSyncResult.WRITTEN, detail)
        if self._folder.unchanged(file, entry):
            local_document = file.document
            return self._write(
                file, theirs, theirs, _update_result(local_document, theirs), earlier=local_document
            )
        if file.document is None:
            return self._conflict(file, theirs, None, None, f"it {file.problem}")
        base = await self._base(file.document, theirs)
        mine = file.document.filled(base or theirs)
        if mine.same(theirs):
            return self._write(file, theirs, theirs, FileSyncResult.UNCHANGED)
        if base is None:
            detail = "the file was not pulled from this block"
            return self._conflict(file, theirs, None, mine, detail)
        if base.revision == theirs.revision:
            return self._changed_here(file, theirs, mine)
        merged = merge(base, theirs, mine)
        if merged.conflicts:
            detail = f"{_joined_fields(merged.conflicts)} changed both here and there"
            return self._conflict(file, theirs, base, mine, detail)
        result = FileSyncResult.UPDATED if merged.document.same(theirs) else FileSyncResult.MERGED
        detail = (
            ""
            if result is FileSyncResult.UPDATED
            else "the changes in the file are kept; push them"
        )
        return self._write(file, merged.document, theirs, result, detail, earlier=mine)

    async def _base(self, mine: BlockFile, theirs: BlockFile) -> BlockFile | None:
        if mine.block_id != theirs.block_id or not 0 < mine.revision <= theirs.revision:
            return None
        if mine.revision == theirs.revision:
            return theirs
        version = await version_at(self._client, theirs.block_id, mine.revision)
        return None if version is None else document_of_version(version)

    def _write(
        self,
        file: MemoryFile | None,
        document: BlockFile,
        theirs: BlockFile,
        result: FileSyncResult,
        detail: str = "",
        *,
        earlier: BlockFile | None = None,
    ) -> FileOutcome:
        """Writes the new content of a block's file."""
        name = file_name(document.label)
        if file is None or file.name != name:
            if name in self._files or (twin := self._folder.twin(name)):
                taken = name if name in self._files else twin
                return FileOutcome(
                    name,
                    FileSyncResult.REFUSED,
                    f"a different file {taken} exists.",
                    theirs.revision,
                )
            if file is not None:
                detail = f"was {file.name}" + (f"; {detail}" if detail else "")
                result = FileSyncResult.UPDATED if result is FileSyncResult.UNCHANGED else result
        if not self._dry_run:
            if file is not None and not self._folder.holds(file):
                return FileOutcome(
                    file.name, FileSyncResult.REFUSED, CHANGED_MEANWHILE, theirs.revision
                )
            self._folder.write(name, document)
            if file is not None and file.name != name:
                self._folder.remove(file.name)
            self._folder.in_step(theirs)
            self._folder.drop_theirs(theirs.label)
        differences = (difference(earlier, document),) if earlier is not None else ()
        if result is FileSyncResult.UNCHANGED:
            differences = ()
        return FileOutcome(name, result, detail, theirs.revision, differences)

    def _changed_here(self, file: MemoryFile, theirs: BlockFile, mine: BlockFile) -> FileOutcome:
        if not self._dry_run:
            self._folder.in_step(theirs)
            self._folder.drop_theirs(theirs.label)
        differences = (difference(theirs, mine),)
        return FileOutcome(file.name, FileSyncResult.AHEAD, "push it", theirs.revision, differences)

    def _conflict(
        self,
        file: MemoryFile,
        theirs: BlockFile,
        base: BlockFile | None,
        mine: BlockFile | None,
        detail: str,
    ) -> FileOutcome:
        if self._on_conflict is ConflictChoice.THEIRS:
            detail = "the changes in the file are dropped"
            return self._write(file, theirs, theirs, FileSyncResult.UPDATED, detail, earlier=mine)
        if self._on_conflict is ConflictChoice.MINE and mine is not None:
            local_document = replace(mine, revision=theirs.revision, block_id=theirs.block_id)
            detail = "kept; a push now overwrites changes by others"
            return self._write(
                file, local_document, theirs, FileSyncResult.AHEAD, detail, earlier=theirs
            )
        if not self._dry_run:
            beside = self._folder.write_theirs(theirs)
            detail = f"{detail}; nothing is overwritten, the block is in {beside}"
        sides = () if mine is None else both_sides(base, theirs, mine)
        return FileOutcome(file.name, FileSyncResult.CONFLICT, detail, theirs.revision, sides)

    def _lost_files(self, attached: set[str]) -> list[FileOutcome]:
        lost = {key: entry for key, entry in self._folder.entries.items() if key not in attached}
        return [outcome for key, entry in lost.items() for outcome in self._lost_file(key, entry)]

    def _lost_file(self, block_id: str, entry: SyncedFile) -> list[FileOutcome]:
        file = self._files.of_lost_block(block_id, entry)
        if file is not None and not (self._delete and self._folder.unchanged(file, entry)):
            detail = "the agent no longer has this block; the file is kept"
            if self._folder.unchanged(file, entry):
                detail += " (--delete removes it)"
            return [FileOutcome(file.name, FileSyncResult.GONE, detail)]
        if not self._dry_run:
            if file is not None:
                self._folder.remove(file.name)
            del self._folder.entries[block_id]
        if file is None:
            return []
        return [
            FileOutcome(file.name, FileSyncResult.REMOVED, "the agent no longer has this block")
        ]


def _update_result(earlier: BlockFile | None, theirs: BlockFile) -> FileSyncResult:
    return (
        FileSyncResult.UNCHANGED
        if earlier is not None and earlier.same(theirs)
        else FileSyncResult.UPDATED
    )


def _joined_fields(names: tuple[str, ...]) -> str:
    words = ["the text" if name == "value" else name.replace("_", "-") for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
