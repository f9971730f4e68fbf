"""Push: writes changes in the Markdown files of a folder to the memory blocks of an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import GatewayClient, new_request_id
from strata.cli.failures import UsageError, error_lines
from strata.cli.memory.blocks import version_at
from strata.cli.memory.document_merge import Merged, merge
from strata.cli.memory.folder import CHANGED_MEANWHILE, Files, MemoryFile, MemoryFolder, SyncedFile
from strata.cli.memory.markdown import FIELDS, BlockFile, document_of, document_of_version
from strata.cli.memory.sync_results import FileOutcome, FileSyncResult, both_sides, difference
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StrataError,
)
from strata.shared.agent_mcp.blocks import blocks_of

_ATTEMPTS = 3

# Errors about one block; any other error ends the push.
_ERRORS_OF_ONE_BLOCK = (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Options of a push.

    Attributes:
        dry_run: Report the results without changing anything.
        force: Change read-only blocks too.
        delete: Detach blocks whose files were removed.
        importing: The files are another agent's, so ignore their ids and revisions.
        reason: Stored with each version.
        consent: Raises unless the person agrees to detach the blocks of these labels.
    """

    consent: Callable[[list[str]], None]
    dry_run: bool = False
    force: bool = False
    delete: bool = False
    importing: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _PushPlan:
    """The change of a block by its file; `base` is None if they have no common version."""

    base: BlockFile | None
    theirs: BlockFile
    mine: BlockFile
    merged: Merged


class Push:
    """One push.

    Changes by others since a file was pulled are merged. A conflict leaves the file and the block
    as they are; the other files are still pushed.

    Args:
        client: The gateway.

        agent_id: The agent whose blocks are changed.
        folder: The folder of the files.
        options: Options of the push.

    Raises:
        UsageError: The folder contains the memory of another agent, or does not exist.
    """

    def __init__(
        self, client: GatewayClient, agent_id: str, folder: MemoryFolder, options: PushOptions
    ) -> None:
        if not folder.path.exists():
            raise UsageError(f"There is no folder {folder.path}.")
        if folder.agent_id not in ("", agent_id) and not options.importing:
            raise UsageError(
                f"{folder.path} contains the memory of {folder.agent_id}, another agent. With "
                "--import its files become blocks of this one."
            )
        self._client = client
        self._agent_id = agent_id
        self._folder = folder
        self._options = options
        self._files = Files(folder.read())
        self._blocks: dict[str, pb.Block] = {}

    async def run(self) -> list[FileOutcome]:
        """Pushes, and returns the result for each file."""
        dry = self._options.dry_run
        self._blocks = {block.id: block for block in await blocks_of(self._client, self._agent_id)}
        if not dry:
            self._folder.belong_to(self._agent_id)
        try:
            outcomes = [await self._push(file) for file in self._files.all]
            outcomes += await self._missing()
        finally:
            if not dry:
                self._folder.save()
        return outcomes

    async def _push(self, file: MemoryFile) -> FileOutcome:
        if file.document is None:
            result = FileSyncResult.SKIPPED if file.foreign else FileSyncResult.REFUSED
            return FileOutcome(file.name, result, f"it {file.problem}")
        document = file.document
        if self._options.importing:
            document = replace(document, block_id="", revision=0)
        try:
            return await self._push_document(file, document)
        except _ERRORS_OF_ONE_BLOCK as error:
            return FileOutcome(file.name, FileSyncResult.REFUSED, _error_text(error))

    async def _push_document(self, file: MemoryFile, document: BlockFile) -> FileOutcome:
        twins = [twin.name for twin in self._files.claiming(document.block_id)]
        if document.block_id and len(twins) > 1:
            return FileOutcome(
                file.name,
                FileSyncResult.REFUSED,
                f"{' and '.join(twins)} belong to one block. Remove block_id and revision from the "
                "one that should become a new block.",
            )
        block = self._block_of(document)
        if block is None and document.block_id:
            return FileOutcome(
                file.name,
                FileSyncResult.REFUSED,
                "the agent does not have this block. Bring it back with: strata memory restore; "
                "or remove block_id and revision from the file, and it becomes a new block.",
            )
        if block is None:
            return await self._create(file, document)
        for _ in range(_ATTEMPTS):
            outcome = await self._update(file, document, block)
            if outcome is not None:
                return outcome
            # The block was changed meanwhile: read it again.
            request = pb.GetBlockRequest(block_id=block.id)
            block = (await self._client.blocks.GetBlock(request)).block
        return FileOutcome(
            file.name, FileSyncResult.REFUSED, "the block keeps changing. Try again."
        )

    def _block_of(self, document: BlockFile) -> pb.Block | None:
        if document.block_id:
            return self._blocks.get(document.block_id)
        matches = [block for block in self._blocks.values() if block.label == document.label]
        return matches[0] if matches else None

    async def _create(self, file: MemoryFile, document: BlockFile) -> FileOutcome:
        empty = BlockFile(document.label, "", document.description, document.limit, None)
        differences = (difference(empty, replace(document, read_only=None)),)
        if self._options.dry_run:
            return FileOutcome(file.name, FileSyncResult.CREATED, differences=differences)
        request = pb.CreateBlockRequest(
            request_id=new_request_id(),
            agent_id=self._agent_id,
            block=pb.NewBlock(
                label=document.label,
                value=document.value,
                description=document.description,
                limit=document.limit or 0,
                read_only=document.read_only or False,
            ),
        )
        block = (await self._client.blocks.CreateBlock(request)).block
        detail = self._update_file(file, document_of(block))
        return FileOutcome(file.name, FileSyncResult.CREATED, detail, block.revision, differences)

    async def _update(
        self, file: MemoryFile, document: BlockFile, block: pb.Block
    ) -> FileOutcome | None:
        """Updates a block; returns None if it was changed meanwhile."""
        plan = await self._plan(document, document_of(block))
        theirs, merged = plan.theirs, plan.merged
        if merged.conflicts:
            return self._conflict(file, plan)
        if merged.document.same(theirs):
            return self._up_to_date(file, plan)
        differences = (difference(theirs, merged.document),)
        if theirs.read_only and not self._options.force:
            detail = "the block is read-only. --force changes it anyway."
            return FileOutcome(
                file.name, FileSyncResult.REFUSED, detail, theirs.revision, differences
            )
        is_merge = plan.base is not None and not plan.base.same(theirs)
        result = FileSyncResult.MERGED if is_merge else FileSyncResult.UPDATED
        if self._options.dry_run:
            return FileOutcome(file.name, result, differences=differences, revision=theirs.revision)
        try:
            response = await self._client.blocks.UpdateBlock(self._request(plan))
        except AbortedError:
            return None
        after = document_of(response.block)
        detail = self._update_file(file, after)
        if response.merged and not detail:
            detail = "with changes by others, which are now in the file too"
        result = FileSyncResult.MERGED if response.merged else result
        differences = (difference(theirs, after),)
        return FileOutcome(file.name, result, detail, after.revision, differences)

    async def _plan(self, document: BlockFile, theirs: BlockFile) -> _PushPlan:
        base = await self._base(document, theirs)
        mine = document.filled(base or theirs)
        if base is not None:
            return _PushPlan(base, theirs, mine, merge(base, theirs, mine))
        if mine.value == theirs.value or not theirs.value:
            # Nothing is lost by writing over an empty block.
            return _PushPlan(None, theirs, mine, Merged(replace(mine, block_id=theirs.block_id)))
        return _PushPlan(None, theirs, mine, Merged(theirs, ("value",)))

    async def _base(self, mine: BlockFile, theirs: BlockFile) -> BlockFile | None:
        if not mine.block_id or not mine.revision:
            return None
        if mine.revision == theirs.revision:
            return theirs
        version = await version_at(self._client, theirs.block_id, mine.revision)
        return None if version is None else document_of_version(version)

    def _request(self, plan: _PushPlan) -> pb.UpdateBlockRequest:
        """Returns the request with the file's text and its base; the server merges texts itself."""
        theirs, target = plan.theirs, plan.merged.document
        changed = {
            name: getattr(target, name)
            for name in FIELDS
            if getattr(target, name) != getattr(theirs, name)
        }
        based_on = theirs.revision if plan.base is None else plan.base.revision
        if "value" in changed:
            changed["value"] = plan.mine.value
        strict = plan.base is None or changed.keys() != {"value"}
        return pb.UpdateBlockRequest(
            request_id=new_request_id(),
            block_id=theirs.block_id,
            base_revision=based_on if "value" in changed else 0,
            # The server merges only texts; other fields need the newest revision.
            expected_revision=theirs.revision if strict else 0,
            reason=self._options.reason,
            **changed,
        )

    def _conflict(self, file: MemoryFile, plan: _PushPlan) -> FileOutcome:
        detail = "nothing was written. Pull, resolve the conflict in the file, and push again"
        if plan.base is None:
            detail = (
                "the block has another text, and the file was not pulled from it. Nothing was "
                "written. Pull, resolve the conflict in the file, and push again"
            )
        sides = both_sides(plan.base, plan.theirs, plan.mine)
        return FileOutcome(file.name, FileSyncResult.CONFLICT, detail, plan.theirs.revision, sides)

    def _up_to_date(self, file: MemoryFile, plan: _PushPlan) -> FileOutcome:
        theirs = plan.theirs
        if plan.mine.same(theirs):
            if not self._options.dry_run:
                self._update_file(file, theirs)
            return FileOutcome(file.name, FileSyncResult.UNCHANGED, revision=theirs.revision)
        detail = f"the block is at revision {theirs.revision}: pull"
        return FileOutcome(file.name, FileSyncResult.BEHIND, detail, theirs.revision)

    def _update_file(self, file: MemoryFile, document: BlockFile) -> str:
        """Updates the file from its block; returns a remark, or an empty text."""
        self._folder.in_step(document)
        self._folder.drop_theirs(document.label)
        if not self._folder.holds(file):
            # The person is still editing; the next pull merges.
            return CHANGED_MEANWHILE
        self._folder.write(file.name, document)
        return ""

    async def _missing(self) -> list[FileOutcome]:
        lost = {
            key: entry
            for key, entry in self._folder.entries.items()
            if key in self._blocks and entry.file not in self._files
            if not self._files.claiming(key)
        }
        if not lost:
            return []
        if not self._options.delete:
            detail = "the file was removed; the block is kept (--delete detaches it)"
            return [
                FileOutcome(entry.file, FileSyncResult.MISSING, detail) for entry in lost.values()
            ]
        if not self._options.dry_run:
            self._options.consent([self._blocks[key].label for key in lost])
        return [await self._detach(key, entry) for key, entry in lost.items()]

    async def _detach(self, block_id: str, entry: SyncedFile) -> FileOutcome:
        block = self._blocks[block_id]
        if block.read_only and not self._options.force:
            detail = "the block is read-only. --force detaches it anyway."
            return FileOutcome(entry.file, FileSyncResult.REFUSED, detail)
        if not self._options.dry_run:
            request = pb.DetachBlockRequest(
                request_id=new_request_id(), agent_id=self._agent_id, block_id=block_id
            )
            try:
                await self._client.blocks.DetachBlock(request)
            except _ERRORS_OF_ONE_BLOCK as error:
                return FileOutcome(entry.file, FileSyncResult.REFUSED, _error_text(error))
            del self._folder.entries[block_id]
        return FileOutcome(
            entry.file, FileSyncResult.DETACHED, f"{block.label} is kept, see strata memory log"
        )


def _error_text(error: StrataError) -> str:
    return error_lines(error)[0]
