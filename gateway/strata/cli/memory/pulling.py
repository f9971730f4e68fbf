"""Brings the files of a folder up to the blocks of an agent."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import Client
from strata.cli.failures import UsageError
from strata.cli.memory.blocks import blocks_of, version_at
from strata.cli.memory.document_merge import merge
from strata.cli.memory.folder import (
    CHANGED_MEANWHILE,
    Entry,
    Files,
    MemoryFile,
    MemoryFolder,
    file_name,
)
from strata.cli.memory.markdown import Document, document_of, document_of_version
from strata.cli.memory.outcomes import Outcome, Result, both_sides, difference


class OnConflict(StrEnum):
    """What becomes of a file that conflicts with its block."""

    REPORT = "report"
    MINE = "mine"
    THEIRS = "theirs"


class Pull:
    """One pull.

    A file that was changed here is merged with its block or left alone; it is overwritten
    only if the person says so.

    Args:
        client: The gateway.
        agent_id: Whose blocks.
        folder: Where to.
        on_conflict: What becomes of conflicts.
        delete: Remove the files of blocks that the agent has no more.
        dry_run: Only tell.

    Raises:
        UsageError: The folder holds the memory of another agent.
    """

    def __init__(
        self,
        client: Client,
        agent_id: str,
        folder: MemoryFolder,
        *,
        on_conflict: OnConflict = OnConflict.REPORT,
        delete: bool = False,
        dry_run: bool = False,
    ) -> None:
        if folder.agent_id not in ("", agent_id):
            raise UsageError(
                f"{folder.path} holds the memory of {folder.agent_id}, another agent. Pull into "
                "another folder."
            )
        self._client = client
        self._agent_id = agent_id
        self._folder = folder
        self._on_conflict = on_conflict
        self._delete = delete
        self._dry_run = dry_run
        self._files = Files(folder.read())

    async def run(self) -> list[Outcome]:
        """Pulls, and returns what became of each file."""
        blocks = await blocks_of(self._client, self._agent_id)
        if not self._dry_run:
            self._folder.belong_to(self._agent_id)
        try:
            outcomes = [await self._pull(block) for block in blocks]
            outcomes += self._gone({block.id for block in blocks})
        finally:
            if not self._dry_run:
                self._folder.save()
        return outcomes

    async def _pull(self, block: pb.Block) -> Outcome:
        theirs = document_of(block)
        entry = self._folder.entries.get(block.id)
        file = self._files.of_block(theirs, entry)
        if file is None:
            detail = "" if entry is None else "the file was missing"
            return self._put(None, theirs, theirs, Result.WRITTEN, detail)
        if self._folder.unchanged(file, entry):
            known = file.document
            return self._put(file, theirs, theirs, _changed(known, theirs), known=known)
        if file.document is None:
            return self._conflict(file, theirs, None, None, f"it {file.problem}")
        base = await self._base(file.document, theirs)
        mine = file.document.filled(base or theirs)
        if mine.same(theirs):
            return self._put(file, theirs, theirs, Result.UNCHANGED)
        if base is None:
            detail = "the file was not pulled from this block"
            return self._conflict(file, theirs, None, mine, detail)
        if base.revision == theirs.revision:
            return self._ahead(file, theirs, mine)
        merged = merge(base, theirs, mine)
        if merged.conflicts:
            detail = f"{_and(merged.conflicts)} changed both here and there"
            return self._conflict(file, theirs, base, mine, detail)
        result = Result.UPDATED if merged.document.same(theirs) else Result.MERGED
        detail = "" if result is Result.UPDATED else "what was changed here is kept; push it"
        return self._put(file, merged.document, theirs, result, detail, known=mine)

    async def _base(self, mine: Document, theirs: Document) -> Document | None:
        if mine.block_id != theirs.block_id or not 0 < mine.revision <= theirs.revision:
            return None
        if mine.revision == theirs.revision:
            return theirs
        version = await version_at(self._client, theirs.block_id, mine.revision)
        return None if version is None else document_of_version(version)

    def _put(
        self,
        file: MemoryFile | None,
        document: Document,
        theirs: Document,
        result: Result,
        detail: str = "",
        *,
        known: Document | None = None,
    ) -> Outcome:
        """Writes what shall be in the file of a block from now on."""
        name = file_name(document.label)
        if file is None or file.name != name:
            if name in self._files or (twin := self._folder.twin(name)):
                taken = name if name in self._files else twin
                return Outcome(name, Result.REFUSED, f"{taken} is in the way.", theirs.revision)
            if file is not None:
                detail = f"was {file.name}" + (f"; {detail}" if detail else "")
                result = Result.UPDATED if result is Result.UNCHANGED else result
        if not self._dry_run:
            if file is not None and not self._folder.holds(file):
                return Outcome(file.name, Result.REFUSED, CHANGED_MEANWHILE, theirs.revision)
            self._folder.write(name, document)
            if file is not None and file.name != name:
                self._folder.remove(file.name)
            self._folder.in_step(theirs)
            self._folder.drop_theirs(theirs.label)
        shown = (difference(known, document),) if known is not None else ()
        if result is Result.UNCHANGED:
            shown = ()
        return Outcome(name, result, detail, theirs.revision, shown)

    def _ahead(self, file: MemoryFile, theirs: Document, mine: Document) -> Outcome:
        if not self._dry_run:
            self._folder.in_step(theirs)
            self._folder.drop_theirs(theirs.label)
        shown = (difference(theirs, mine),)
        return Outcome(file.name, Result.AHEAD, "push it", theirs.revision, shown)

    def _conflict(
        self,
        file: MemoryFile,
        theirs: Document,
        base: Document | None,
        mine: Document | None,
        detail: str,
    ) -> Outcome:
        if self._on_conflict is OnConflict.THEIRS:
            detail = "what was changed here is dropped"
            return self._put(file, theirs, theirs, Result.UPDATED, detail, known=mine)
        if self._on_conflict is OnConflict.MINE and mine is not None:
            kept = replace(mine, revision=theirs.revision, block_id=theirs.block_id)
            detail = "kept; a push now overwrites what others changed"
            return self._put(file, kept, theirs, Result.AHEAD, detail, known=theirs)
        if not self._dry_run:
            beside = self._folder.write_theirs(theirs)
            detail = f"{detail}; nothing is overwritten, theirs is in {beside}"
        sides = () if mine is None else both_sides(base, theirs, mine)
        return Outcome(file.name, Result.CONFLICT, detail, theirs.revision, sides)

    def _gone(self, attached: set[str]) -> list[Outcome]:
        lost = {key: each for key, each in self._folder.entries.items() if key not in attached}
        return [each for key, entry in lost.items() for each in self._lost(key, entry)]

    def _lost(self, block_id: str, entry: Entry) -> list[Outcome]:
        file = self._files.of_lost_block(block_id, entry)
        if file is not None and not (self._delete and self._folder.unchanged(file, entry)):
            detail = "the agent has this block no more; the file stays"
            if self._folder.unchanged(file, entry):
                detail += " (--delete removes it)"
            return [Outcome(file.name, Result.GONE, detail)]
        if not self._dry_run:
            if file is not None:
                self._folder.remove(file.name)
            del self._folder.entries[block_id]
        if file is None:
            return []
        return [Outcome(file.name, Result.REMOVED, "the agent has this block no more")]


def _changed(known: Document | None, theirs: Document) -> Result:
    return Result.UNCHANGED if known is not None and known.same(theirs) else Result.UPDATED


def _and(names: tuple[str, ...]) -> str:
    words = ["the text" if name == "value" else name.replace("_", "-") for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
