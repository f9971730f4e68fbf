"""In-memory implementations of all ports of the loop; any call can simulate a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from strata.agent_loop.context.packaging import package
from strata.agent_loop.domain.agent.agents import Agent, ModelConfig
from strata.agent_loop.domain.conversation.messages import (
    Message,
    MessagePart,
    ToolReturn,
    Window,
    without_bytes,
)
from strata.agent_loop.domain.model.chat import (
    ImagePart,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    TextDelta,
    TextPart,
    ToolSchema,
)
from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.domain.ports import (
    ArchivalStats,
    BegunTurn,
    BoundModel,
    CommittedStep,
    MemorySection,
    MemoryView,
    StepCommit,
    WindowSwap,
)
from strata.agent_loop.domain.run.events import MessageStored, RunEvent, RunFinished
from strata.agent_loop.domain.run.journal import JournalKey
from strata.agent_loop.domain.run.runs import (
    DocumentLines,
    DocumentRange,
    RunOutcome,
    TranscriptRange,
)
from strata.agent_loop.domain.tools import (
    CallFinished,
    CallStarted,
    Tool,
    ToolBatch,
    ToolEvent,
    ToolResult,
    ToolSet,
)
from strata.protocol.errors import AbortedError, NotFoundError, Reason, StrataError
from strata.shared.clock import ManualClock
from strata.shared.ids import new_id
from strata.shared.memory_edits import MemoryEdit
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.tool_catalogue import FILE_TOOLS, ToolEffect
from unit.agent_loop.loop.journals import Fate, stale
from unit.agent_loop.loop.model_replies import reply


class Recall:
    """An in-memory recall with the fence of the real one."""

    def __init__(self, agent: Agent, system: str, fate: Fate) -> None:
        first = Message(new_id("message"), MessageRole.SYSTEM, (TextPart(system),))
        self.messages: list[Message] = [first]
        self.hidden = 0
        self.stale = False
        self.revision = 1
        self.log: dict[str, Message] = {}
        self.swaps: list[WindowSwap] = []
        self.evicted: list[TranscriptRange] = []
        self.images: dict[str, bytes] = {}
        self.loaded: list[str] = []
        self.on_swap: Callable[[], None] = lambda: None
        self.commits: list[StepCommit] = []
        self.now: Callable[[], datetime | None] = lambda: None
        self._agent = agent
        self._fate = fate
        self._fence: tuple[str, int] = ("", 0)
        self._steps: dict[str, int] = {}
        self._inputs: dict[str, list[Message]] = {}
        self._of_run: dict[str, list[Message]] = {}

    async def begin_turn(
        self, key: JournalKey, inputs: Sequence[Message], *, clear: bool = False
    ) -> BegunTurn:
        self._fate.step()
        run_id, attempt = self._fence
        if run_id == key.run_id and key.attempt < attempt:
            raise stale()
        self._fence = (key.run_id, key.attempt)
        if key.run_id not in self._inputs:
            self._inputs[key.run_id] = self._store(inputs)
            self._steps[key.run_id] = 0
            self._of_run[key.run_id] = []
            if clear:
                del self.messages[1:]
            self.messages.extend(self._inputs[key.run_id])
            self.revision += 1
        window = await self.get_window(key.conversation_id)
        committed = tuple(self._of_run[key.run_id])
        self._fate.step()
        return BegunTurn(window, self._inputs[key.run_id], self._steps[key.run_id], committed)

    @property
    def attempt(self) -> int:
        """The attempt that has the fence."""
        return self._fence[1]

    async def evict(self, read: TranscriptRange) -> None:
        self._fate.step()
        self.evicted.append(read)

    async def transcript(self, read: TranscriptRange) -> Sequence[Message]:
        self._fate.step()
        return [
            message
            for message in self.log.values()
            if message.conversation_id == read.conversation_id
            and read.after_sequence < message.sequence <= read.until_sequence
        ]

    async def image(self, image_id: str) -> bytes:
        self._fate.step()
        self.loaded.append(image_id)
        if image_id not in self.images:
            raise NotFoundError("No such image.", reason=Reason.IMAGE_NOT_FOUND)
        return self.images[image_id]

    async def get_window(self, conversation_id: str) -> Window:
        return Window(
            conversation_id,
            self._agent.id,
            self.revision,
            tuple(self.messages),
            len(self.messages) + self.hidden,
            self.stale,
        )

    async def swap_window(self, swap: WindowSwap) -> Window:
        self._fate.step()
        self.on_swap()
        if swap.key is not None and self._fence != (swap.key.run_id, swap.key.attempt):
            raise stale()
        if swap.expected_revision != self.revision:
            raise AbortedError("moved", reason=Reason.REVISION_MISMATCH)
        by_id = {message.id: message for message in self.messages[1:]}
        kept = [by_id[message_id] for message_id in swap.kept_ids]
        assert {m.id for m in self.messages[1:] if m.pinned} <= set(swap.kept_ids)
        self.hidden += len(self.messages) - 1 - len(kept)
        self.messages = [self.messages[0], *self._store([swap.summary]), *kept]
        self.revision += 1
        self.stale = True
        self.swaps.append(swap)
        self._fate.step()
        return await self.get_window(swap.conversation_id)

    def _store(self, messages: Sequence[Message]) -> list[Message]:
        stored = []
        for message in messages:
            # The age of answers matters, so they have a time.
            now = self.now() if message.role is MessageRole.APPROVAL else None
            self.images |= {image.image_id: image.data for image in message.images if image.data}
            parts = tuple(_without_bytes(part) for part in message.parts)
            stored.append(
                replace(message, parts=parts, sequence=len(self.log) + 1, create_time=now)
            )
            self.log[message.id] = stored[-1]
        return stored

    async def commit_step(self, commit: StepCommit) -> CommittedStep:
        self._fate.step()
        if self._fence != (commit.key.run_id, commit.key.attempt):
            raise stale()
        if commit.step == self._steps[commit.key.run_id] + 1:
            self._steps[commit.key.run_id] = commit.step
            new = self._store(commit.messages)
            self._of_run[commit.key.run_id].extend(new)
            self.messages.extend(new)
            self.revision += 1
            self.commits.append(commit)
            if commit.system_text is not None:
                text = (TextPart(commit.system_text),)
                self.messages[0] = replace(self.messages[0], parts=text)
            if commit.metadata_stale is not None:
                self.stale = commit.metadata_stale
        self._fate.step()
        stored = tuple(self.log[message.id] for message in commit.messages)
        return CommittedStep(stored, self.revision, len(self.messages) + self.hidden)


def _without_bytes(part: MessagePart) -> MessagePart:
    if isinstance(part, ToolReturn):
        return without_bytes(part)
    return replace(part, data=b"") if isinstance(part, ImagePart) else part


def _summary(request: ModelRequest) -> ModelReply:
    return reply("- They talked.")


class Model:
    """A model that replies from a list, and records its requests.

    Requests for summaries are answered by `on_summary`. Before a failure it streams
    `says_before_failure`.
    """

    def __init__(self, fate: Fate) -> None:
        self.replies: list[ModelReply | Exception] = []
        self.requests: list[ModelRequest] = []
        self.summarised: list[ModelRequest] = []
        self.on_summary: Callable[[ModelRequest], ModelReply | Exception] = _summary
        self.hold: asyncio.Event | None = None
        self.says_before_failure = "half"
        self._fate = fate

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self._fate.step()
        if "transcript" in request.messages[0].text:
            self.summarised.append(request)
            answer = self.on_summary(request)
        else:
            self.requests.append(request)
            answer = self.replies.pop(0)
        text = answer.text if isinstance(answer, ModelReply) else self.says_before_failure
        if text:
            yield TextDelta(text)
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(answer, Exception):
            raise answer
        self._fate.step()
        yield answer


class Tools:
    """Tools that count their effects.

    `keyed` has one effect per idempotency key, `reads` has none, `acts` acts each time. Every call
    of the tools in `failing` is refused. `batches` holds the requested calls.
    """

    def __init__(self, fate: Fate, clock: ManualClock) -> None:
        schema = {"type": "object", "properties": {}}
        self.toolset = ToolSet(
            (
                Tool(ToolSchema("keyed", "", schema), ToolEffect.UNDECLARED, keyed=True),
                Tool(ToolSchema("reads", "", schema), ToolEffect.READ_ONLY),
                Tool(ToolSchema("acts", "", schema), ToolEffect.SIDE_EFFECT),
                Tool(ToolSchema("edits", "", schema), ToolEffect.IDEMPOTENT),
                Tool(ToolSchema("files", "", schema), ToolEffect.IDEMPOTENT),
                Tool(ToolSchema("blocks", "", schema), ToolEffect.SIDE_EFFECT),
                Tool(ToolSchema("memory_finish_edits", "", schema), ToolEffect.READ_ONLY, True),
                *(
                    Tool(ToolSchema(name, "", schema), ToolEffect.IDEMPOTENT, keyed=True)
                    for name in FILE_TOOLS
                ),
            )
        )
        self.batches: list[ToolBatch] = []
        self.failing: set[str] = set()
        self.labels: dict[str, tuple[Provenance | None, tuple[Provenance, ...]]] = {}
        self.images: tuple[ImagePart, ...] = ()
        self.operation = "append"
        self.text = ""
        self.on_call: Callable[[], None] = lambda: None
        self.acted: dict[str, int] = {}
        self.keys: set[str] = set()
        self.running = asyncio.Event()
        self.killed = 0
        self.error: Exception | None = None
        self.on_edit: Callable[[], None] = lambda: None
        self._fate = fate
        self._clock = clock

    async def resolve(
        self,
        names: Sequence[str],
        *,
        skip_missing: bool = False,
        run_id: str = "",
        max_bytes: int = 0,
    ) -> ToolSet:
        return self.toolset

    async def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        self.batches.append(batch)
        for call in batch.calls:
            self._fate.step()
            broken = isinstance(self.error, StrataError) and self.error.lost
            if self.error is not None and not broken:
                raise self.error
            yield CallStarted(call.id, call.name, call.arguments)
            if self.error is not None:
                raise self.error
            if call.name == "blocks":
                self.running.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.killed += 1
            key = batch.idempotency_keys[call.id]
            if call.name in ("acts", "blocks"):
                self.acted[key] = self.acted.get(key, 0) + 1
            self.keys.add(key)
            self.on_call()
            if call.name == "edits":
                self.on_edit()
            self._fate.step()
            status = ToolStatus.FAILED if call.name in self.failing else ToolStatus.OK
            told_text = self.text or f"did {call.name}"
            content = package(status, told_text, self._clock.now(), "UTC")
            edit = MemoryEdit("block-1", "human", 2, "+x", self.operation)
            edits = (edit,) if call.name == "edits" else ()
            label, taint = self.labels.get(call.name, (None, ()))
            images = self.images if call.name == "reads" else ()
            tool_return = ToolReturn(
                call.id, call.name, status, content, provenance=label, taint=taint, images=images
            )
            opened = call.name == "open_files" and status is ToolStatus.OK
            yield CallFinished(ToolResult(tool_return, 1, edits, call.name == "files", opened))


class Memory:
    """A memory section that can be set.

    Attributes:
        fitted: The size limit of the last request to close files, in bytes.
        without_files: The section after files were closed.
        file: The lines of the one file.
    """

    def __init__(self, fate: Fate) -> None:
        self.text = "<memory_blocks>\nempty\n</memory_blocks>"
        self.compiled = 0
        self.fitted: list[int] = []
        self.without_files: str | None = None
        self.revisions: dict[str, int] = {}
        self.has_folders = False
        self.taint: dict[str, tuple[Provenance, ...]] = {}
        self.file: list[str] = []
        self._fate = fate

    async def compile(self, agent: Agent, view: MemoryView) -> MemorySection:
        self._fate.step()
        self.compiled += 1
        return self._section()

    async def close_files(self, agent: Agent, view: MemoryView, max_bytes: int) -> MemorySection:
        self._fate.step()
        self.fitted.append(max_bytes)
        if len(self.text.encode()) > max_bytes and self.without_files is not None:
            self.text = self.without_files
        return self._section()

    async def read_file(self, read: DocumentRange, max_bytes: int) -> DocumentLines:
        self._fate.step()
        lines = self.file[read.after_line + 1 :]
        return DocumentLines("folder/file.txt", tuple(lines), 0, len(self.file))

    def _section(self) -> MemorySection:
        return MemorySection(self.text, None, dict(self.revisions), self.has_folders, self.taint)


class Archival:
    """Counts that can be set, or an error."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: ArchivalStats | Exception = ArchivalStats()

    async def stats(self, agent_id: str) -> ArchivalStats:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Agents:
    """One agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def load(self, agent_id: str, conversation_id: str) -> Agent:
        return self.agent


class Models:
    """One model, or an error."""

    def __init__(self, chat: Model, settings: ModelSettings) -> None:
        self.settings = settings
        self.error: Exception | None = None
        self.others: dict[str, BoundModel] = {}
        self._chat = chat

    async def bind(
        self, config: ModelConfig, keys: Sequence[SealedKey] = (), *, as_fallback: bool = False
    ) -> BoundModel:
        if self.error is not None:
            raise self.error
        if config.handle not in ("", self.settings.handle):
            return self.others[config.handle]
        return BoundModel(self._chat, self.settings)


class Sink:
    """Records events."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    async def emit(self, event: RunEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def kinds(self) -> list[str]:
        """The names of the kinds."""
        return [type(event).__name__ for event in self.events]

    @property
    def outcome(self) -> RunOutcome:
        """How the run ended."""
        assert len(self.of(RunFinished)) == 1
        last = self.events[-1]
        assert isinstance(last, RunFinished)
        return last.outcome

    @property
    def stored(self) -> list[Message]:
        """The messages that were stored."""
        return [event.message for event in self.of(MessageStored)]
