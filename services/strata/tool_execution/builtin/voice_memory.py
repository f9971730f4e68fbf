"""Tools of voice memory agents, and the executor of ``store_memories``.

``store_memories`` archives older messages. `MemoryTools` runs the other tools, which rewrite the
memory block of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.protocol.errors import (
    AlreadyExistsError,
    Reason,
    StrataError,
    UnavailableError,
    is_transient,
)
from strata.shared.convert.messages import labels_to_proto
from strata.shared.request_stream import RequestStream
from strata.shared.tool_catalogue import (
    FINISH_RETHINKING_MEMORY,
    MEMORIES_STORED,
    RETHINK_USER_MEMORY,
    STORE_MEMORIES,
)
from strata.shared.tool_schemas import integer, parameters, text
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.clients.peers import backoff
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolError, ToolType

_MOST_CHARS = 6_000
"""Characters of the lines of one passage. With its context, a passage stays below 8192 tokens in
every language, since a token has at least one character."""
_MOST_REPEATED = 2
"""How many times the total size of the lines may be stored, since memories may overlap."""
_FREELY_CHARS = 60_000
"""Characters of lines that may always be stored, however often lines are repeated."""

MAX_MEMORIES = 100
MAX_CONTEXT_CHARS = 1_500

STORE = builtin(
    name=STORE_MEMORIES,
    description=(
        "Archive the lines of the transcript that are marked (Older), in chunks of one topic,"
        " instruction or preference each. Each chunk is stored with its lines, word for word. Call"
        " it once, first, with all chunks; with an empty list if nothing is worth keeping."
    ),
    kind=ToolType.SLEEPTIME,
    parameters=parameters(
        ["memories"],
        memories={
            "type": "array",
            "items": parameters(
                ["start_index", "end_index", "context"],
                start_index=integer("Index of the first line of the chunk.", minimum=0),
                end_index=integer("Index of its last line.", minimum=0),
                context={
                    **text("Why the chunk matters, in one or two sentences."),
                    "maxLength": MAX_CONTEXT_CHARS,
                },
            ),
            "maxItems": MAX_MEMORIES,
            "description": "The chunks, in order.",
        },
    ),
)

RETHINK = builtin(
    name=RETHINK_USER_MEMORY,
    description=(
        'Rewrite the memory block "human", which contains what is known about the user. It can be'
        " called several times; each call replaces the whole block."
    ),
    kind=ToolType.SLEEPTIME,
    parameters=parameters(
        ["new_memory"],
        new_memory=text(
            "The complete new text of the block, including everything to keep from the old text."
        ),
    ),
)

FINISH = builtin(
    name=FINISH_RETHINKING_MEMORY,
    description='Say that the memory block "human" is complete. Call it last: it ends your turn.',
    kind=ToolType.SLEEPTIME,
    parameters=parameters([]),
)

VOICE_MEMORY_TOOLS = (STORE, RETHINK, FINISH)


class StoreMemories:
    """Runs ``store_memories``.

    The memories of a range of messages are stored in one transaction, with an idempotency key that
    names the range. If an earlier run stored the range and failed afterwards, the next run stores
    nothing again.

    Args:
        passages: Passage service of archival memory.
    """

    names = frozenset({STORE_MEMORIES})

    def __init__(self, passages: passage_grpc.PassageServiceStub) -> None:
        self._passages = passages

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        """Stores one or more passages per memory.

        Raises:
            ToolError: The run has no older lines, or an index is outside of them.
            StrataError: Archival memory refused the request.
        """
        memories = arguments["memories"]
        if not memories:
            return Output(MEMORIES_STORED)
        older = caller.older_lines
        if older is None or not older.lines:
            raise ToolError(
                "There are no lines marked (Older) in this run. Call store_memories with an empty"
                " list."
            )
        memories = _of_older(memories, older.lines)
        _check(memories, older.lines)
        origin = passage_pb.PassageOrigin(
            agent_id=caller.agent_id,
            run_id=caller.run_id,
            tool_call_id=call.id,
            message_id=caller.message_id,
            taint=labels_to_proto(caller.taint),
        )
        texts = [text for memory in memories for text in passages_of(memory, older.lines)]
        request = passage_pb.UploadPassagesRequest(
            request_id=older.range_key,
            agent_id=older.agent_id,
            passages=[passage_pb.NewPassage(text=text, origin=origin) for text in texts],
        )
        try:
            response = await self._upload(request)
        except AlreadyExistsError as error:
            if error.reason is not Reason.REQUEST_ID_REUSED:
                raise
            # An earlier run has stored memories of this range, with a different text.
            return Output(MEMORIES_STORED)
        return Output(MEMORIES_STORED, archival_changed=response.inserted_count > 0)

    async def _upload(
        self, request: passage_pb.UploadPassagesRequest
    ) -> passage_pb.UploadPassagesResponse:
        """Stores passages in one transaction; retries while archival memory is unavailable."""
        pauses = backoff()
        # Each request message is one transaction.
        requests = RequestStream(request)
        requests.close()
        while True:
            try:
                # gRPC takes any asynchronous iterable.
                answers = self._passages.UploadPassages(requests)  # type: ignore[arg-type]
                return [progress async for progress in answers][-1]
            except StrataError as error:
                if not is_transient(error):
                    raise
                if not await pauses.wait(error):
                    raise UnavailableError(
                        "The archival memory service cannot be reached now."
                    ) from error


def passages_of(memory: dict[str, Any], lines: Sequence[str]) -> Iterator[str]:
    """Yields the passages of a memory: its context, an empty line, and its lines.

    A long memory is split into several passages, each with the context.
    """
    text = "\n".join(lines[memory["start_index"] : memory["end_index"] + 1])
    context = memory["context"].strip()
    for piece in _pieces(text):
        yield f"{context}\n\n{piece}" if context else piece


def _pieces(text: str) -> Iterator[str]:
    """Yields a text in pieces of at most `_MOST_CHARS`, split between lines where possible."""
    piece = ""
    for line in text.split("\n"):
        starts = range(0, max(len(line), 1), _MOST_CHARS)
        for part in (line[start : start + _MOST_CHARS] for start in starts):
            if piece and len(piece) + len(part) >= _MOST_CHARS:
                yield piece
                piece = ""
            piece = f"{piece}\n{part}" if piece else part
    if piece.strip():
        yield piece


def _of_older(memories: Sequence[dict[str, Any]], lines: Sequence[str]) -> list[dict[str, Any]]:
    """Limits memories to the older lines.

    Small models also name newer lines. Those stay in the context window, and a later run archives
    them. If no memory names an older line, all are returned unchanged, and `_check` refuses them.
    """
    last = len(lines) - 1
    of_older = [
        {**memory, "end_index": min(memory["end_index"], last)}
        if memory["end_index"] >= memory["start_index"]
        else memory
        for memory in memories
        if memory["start_index"] <= last
    ]
    return of_older or list(memories)


def _check(memories: Sequence[dict[str, Any]], lines: Sequence[str]) -> None:
    last = len(lines) - 1
    for number, memory in enumerate(memories):
        start, end = memory["start_index"], memory["end_index"]
        if not start <= end <= last:
            raise ToolError(
                f"memories[{number}] names the lines {start} to {end}; the lines marked (Older)"
                f" are 0 to {last}, and start_index is not above end_index. Nothing was stored."
            )
    sizes = list(accumulate(map(len, lines), initial=0))
    size = sum(sizes[memory["end_index"] + 1] - sizes[memory["start_index"]] for memory in memories)
    if size > max(_FREELY_CHARS, _MOST_REPEATED * sizes[-1]):
        raise ToolError(
            "The memories repeat the same lines too often. Name each line in one of them. Nothing"
            " was stored."
        )
