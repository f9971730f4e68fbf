"""Compares streams, stored state and effects after all turns of a fault test have ended.

The functions check the records that a `faults.turns.Worker` has collected; they call no service.
`compare` calls all of them; `tests/faults/test_comparison.py` proves that each of them can fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from faults.live import text_of
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb

RunEvent = run_event_pb2.RunEvent

TRANSIENT = {"text_delta", "reasoning_delta", "tool_call_delta", "text_snapshot"}
ENGINES = {"postgres", "vectors"}
_OK, _FAILED, _UNKNOWN = (
    message_pb2.TOOL_STATUS_OK,
    message_pb2.TOOL_STATUS_FAILED,
    message_pb2.TOOL_STATUS_UNKNOWN,
)
_SEND_MESSAGE = "send_message"
# Allowed numbers of effects of a call, by the status of its return.
_EFFECTS = {_OK: {1}, _FAILED: {0}, _UNKNOWN: {0, 1}}
# Kinds of runs that request a single reply from the model.
_ONE_REPLY = {"plain", "long", "answer"}


@dataclass
class Fault:
    """A process that was killed, stopped or hung, or a database that refused to write."""

    service: str
    how: str
    began: float
    ended: float = float("inf")
    moments: frozenset[str] = frozenset()


@dataclass
class Stream:
    """The events of a run that one client received.

    Attributes:
        events: All events in order of arrival, over all connections.
        connections: Number of streams that the client opened.
    """

    events: list[RunEvent] = field(default_factory=list)
    connections: int = 0

    @property
    def numbered(self) -> list[RunEvent]:
        """The received events that have a sequence number."""
        return [event for event in self.events if event.WhichOneof("event") not in TRANSIENT]

    @property
    def after(self) -> int:
        """The last sequence number that was received."""
        return max((event.sequence for event in self.events), default=0)

    @property
    def over(self) -> bool:
        """Whether the terminal event was received."""
        return bool(self.events) and self.events[-1].HasField("run_finished")


@dataclass
class Run:
    """A run as its client received it, and as it is stored.

    Attributes:
        kind: One of the kinds of `faults.turns`; "answer" continues after an approval.
        seen: The events that its client received.
        followed: The events that a second client received, which joined during the run.
        stored: The numbered events, read again after the end of the run.
        row: The run as `GetRun` returns it afterwards.
        returned: Status and text that the client returned for the call of its own tool.
        sends_message: Whether the agent uses the V2 loop and replies through ``send_message``.
    """

    tag: str
    kind: str
    began: float
    seen: Stream = field(default_factory=Stream)
    followed: Stream | None = None
    stored: list[RunEvent] = field(default_factory=list)
    row: run_pb.Run = field(default_factory=run_pb.Run)
    ended: float = 0.0
    returned: tuple[int, str] | None = None
    sends_message: bool = False

    @property
    def id(self) -> str:
        return str(self.seen.events[0].run_id)

    @property
    def finished(self) -> run_event_pb2.RunFinished:
        return self.seen.events[-1].run_finished

    @property
    def messages(self) -> list[message_pb2.Message]:
        """The messages in the stored events."""
        return [e.message_stored.message for e in self.stored if e.HasField("message_stored")]

    @property
    def replies(self) -> list[message_pb2.Message]:
        """Those of `messages` that are replies which this run requested from the model."""
        return [message for message in self.messages if message.HasField("usage")]

    @property
    def returns(self) -> list[message_pb2.ToolReturnPart]:
        """The tool returns in `messages`."""
        parts = [part for message in self.messages for part in message.parts]
        return [part.tool_return for part in parts if part.HasField("tool_return")]

    @property
    def approval(self) -> message_pb2.ApprovalRequestPart | None:
        """The approval, or the client's tool return, that the run requests; None if it has none."""
        for event in self.stored:
            if event.HasField("approval_requested"):
                return event.approval_requested.approval
        return None

    @property
    def stages(self) -> list[bool]:
        """For each reply that the run must request: whether it follows a tool return."""
        if self.approval is not None:
            return [False]
        return [self.kind == "answer"] if self.kind in _ONE_REPLY else [False, True]

    def touched(self, faults: Sequence[Fault], services: set[str]) -> bool:
        """Whether one of the services had a fault during the run."""
        return any(
            fault.service in services and fault.began <= self.ended and fault.ended >= self.began
            for fault in faults
        )

    def describe(self) -> str:
        """Returns the run as text for a failed assertion."""

        def lines(events: Sequence[RunEvent]) -> str:
            return "\n    ".join(
                f"{event.sequence} {event.WhichOneof('event')} {str(event).replace(chr(10), ' ')}"[
                    :300
                ]
                for event in events
                if event.WhichOneof("event") not in TRANSIENT
            )

        return (
            f"{self.kind} {self.tag}, {self.seen.connections} connections\n  seen:\n"
            f"    {lines(self.seen.events)}\n  stored:\n    {lines(self.stored)}"
        )


@dataclass
class File:
    """An uploaded file, as its client sent it or as it is listed."""

    name: str
    content_hash: str
    ready: bool = True


@dataclass
class Account:
    """All records of one agent.

    Attributes:
        runs: Its runs, in order.
        bought: Number of requests that reached the model, by tag and by whether they follow a
            tool return.
        summaries: Times at which summaries of its conversation were requested from the model.
        recorded: Number of effects of the tool that acts outside Strata, by tag.
        edited: Number of lines in its block, by tag.
        archived: Number of its passages, by tag.
        log: The messages of its conversation.
        open_approvals: Number of approval requests without an answer.
        uploaded: Files whose upload was acknowledged.
        listed: The files of its folder.
    """

    runs: Sequence[Run]
    bought: Mapping[tuple[str, bool], int] = field(default_factory=Counter)
    summaries: Sequence[float] = ()
    recorded: Mapping[str, int] = field(default_factory=Counter)
    edited: Mapping[str, int] = field(default_factory=Counter)
    archived: Mapping[str, int] = field(default_factory=Counter)
    log: Sequence[message_pb2.Message] = ()
    open_approvals: int = 0
    uploaded: Sequence[File] = ()
    listed: Sequence[File] = ()


def compare(account: Account, faults: Sequence[Fault]) -> Counter[str]:
    """Runs all checks of this module.

    Returns:
        Counts for the report: replies and summaries requested again, statuses of tool calls.

    Raises:
        AssertionError: A check failed.
    """
    check_streams(account, faults)
    check_rows(account)
    again = check_purchases(account, faults)
    check_usage(account, faults)
    ends = check_effects(account)
    check_log(account)
    check_files(account)
    assert account.open_approvals == 0, "every approval was answered"
    return again + ends


def check_streams(account: Account, faults: Sequence[Fault]) -> None:
    """Asserts that clients received each run as it is stored, without gaps or repetitions."""
    for run in account.runs:
        kept = [event.SerializeToString(deterministic=True) for event in run.stored]
        sequences = [event.sequence for event in run.stored]
        assert sequences == list(range(1, len(sequences) + 1)), run.describe()
        ends = [event.HasField("run_finished") for event in run.stored]
        assert ends == [False] * (len(ends) - 1) + [True], run.describe()
        wanted = (
            run_event_pb2.STOP_REASON_REQUIRES_APPROVAL
            if run.approval is not None
            else run_event_pb2.STOP_REASON_END_TURN
        )
        assert run.finished.stop_reason == wanted, run.describe()
        for stream in filter(None, (run.seen, run.followed)):
            numbered = [e.SerializeToString(deterministic=True) for e in stream.numbered]
            assert numbered == kept, f"{stream.numbered}\n{run.describe()}"
        check_text(run, run.seen, interrupted=_interrupted(run, run.seen))
        if run.followed is not None:
            # The stream of a follower at another gateway breaks off when either gateway is down.
            away = run.touched(faults, {"gateway", "agent_loop", "postgres"})
            check_text(run, run.followed, interrupted=away, late=True)


def _interrupted(run: Run, stream: Stream) -> bool:
    attempts = sum(event.HasField("run_started") for event in run.stored)
    return stream.connections > 1 or attempts > 1


def check_text(run: Run, stream: Stream, *, interrupted: bool, late: bool = False) -> None:
    """Asserts that a client ends with the stored text, and with no text that is not stored.

    The client appends deltas by the id of their message. A snapshot replaces them, a restarted
    step removes them, and the stored message takes their place. If the run had one attempt and
    the client one connection, all of a stored text must have been streamed; otherwise it may be
    the beginning only. A client that joins late (`late`) receives either all of a reply's text
    or, if the reply was stored before, none.
    """
    streamed: dict[str, str] = {}
    for event in stream.events:
        match event.WhichOneof("event"):
            case "text_delta":
                delta = event.text_delta
                streamed[delta.message_id] = streamed.get(delta.message_id, "") + delta.text
            case "text_snapshot":
                if event.text_snapshot.text:
                    streamed[event.text_snapshot.message_id] = event.text_snapshot.text
            case "step_restarted":
                streamed.pop(event.step_restarted.message_id, None)
            case "message_stored":
                message = event.message_stored.message
                seen, stored = streamed.pop(message.id, ""), text_of(message)
                if message.role in {message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_APPROVAL}:
                    # The reply with the approved call was streamed in the run before this one.
                    again = late or (run.kind == "answer" and _calls(message))
                    cut = interrupted and stored.startswith(seen)
                    whole = seen == stored or cut or (again and not seen)
                    assert whole, f"{seen!r} of {stored!r}\n{run.describe()}"
            case _:
                pass
    assert streamed == {}, f"text that is not stored: {streamed}\n{run.describe()}"


def _calls(message: message_pb2.Message) -> bool:
    return any(part.HasField("tool_call") for part in message.parts)


def check_rows(account: Account) -> None:
    """Asserts that each run's row agrees with its terminal event."""
    for run in account.runs:
        row, finished = run.row, run.finished
        assert row.state == run_pb.RUN_STATE_COMPLETED, run.describe()
        assert row.stop_reason == finished.stop_reason, run.describe()
        assert row.usage == finished.usage, f"{row.usage}\n{run.describe()}"
        assert row.last_sequence == run.stored[-1].sequence, run.describe()
    ids = [run.id for run in account.runs]
    assert len(set(ids)) == len(ids), "a message that is sent again does not start a second run"


def check_purchases(account: Account, faults: Sequence[Fault]) -> Counter[str]:
    """Asserts that only a fault of the agent loop made a run request a reply or summary twice.

    Returns:
        The numbers of replies and summaries that were requested again.
    """
    again: Counter[str] = Counter()
    for run in account.runs:
        asked = sum(account.bought.get((run.tag, stage), 0) for stage in run.stages)
        assert len(run.replies) == len(run.stages), run.describe()
        assert asked >= len(run.replies), f"{asked} requests\n{run.describe()}"
        summaries, kept = _summaries(account, run), _kept_summaries(account, run)
        assert summaries >= kept, f"{summaries} summaries, {kept} stored\n{run.describe()}"
        if not run.touched(faults, {"agent_loop"}):
            assert asked == len(run.replies), f"{asked} requests\n{run.describe()}"
            assert summaries == kept, f"{summaries} summaries, {kept} stored\n{run.describe()}"
        again["replies bought again"] += asked - len(run.replies)
        again["summaries bought again"] += summaries - kept
    known = {(run.tag, stage) for run in account.runs for stage in run.stages}
    assert set(account.bought) <= known, "the model got no other requests"
    return again


def _summaries(account: Account, run: Run) -> int:
    return sum(run.began <= when <= run.ended for when in account.summaries)


def _kept_summaries(account: Account, run: Run) -> int:
    summary = message_pb2.ROLE_SUMMARY
    return sum(message.role == summary and message.run_id == run.id for message in account.log)


def check_usage(account: Account, faults: Sequence[Fault]) -> None:
    """Asserts that a run's usage covers its stored replies and everything else it requested.

    The usage includes summaries, and replies that were lost in the agent loop: exactly if they
    had arrived completely, otherwise by estimate. Only the gateway that relayed a lost reply has
    its text, so a fault of the gateway or of PostgreSQL may lose this part.
    """
    for run in account.runs:
        total = sum(message.usage.total_tokens for message in run.replies)
        used = run.finished.usage.total_tokens
        bought = sum(account.bought.get((run.tag, stage), 0) for stage in run.stages)
        if bought == len(run.replies) and not _summaries(account, run):
            assert used == total, f"{used} tokens of {total}\n{run.describe()}"
            continue
        assert used >= total, f"{used} tokens of {total}\n{run.describe()}"
        if not run.touched(faults, {"gateway", "postgres"}):
            lost = _withdrawn(run)
            assert used >= total + lost, f"{used} tokens of {total} and {lost}\n{run.describe()}"


def _withdrawn(run: Run) -> int:
    """Returns a lower bound for the tokens of replies that were withdrawn after they began."""
    streamed: Counter[str] = Counter()
    tokens = 0
    for event in run.seen.events:
        if event.HasField("text_delta"):
            streamed[event.text_delta.message_id] += len(event.text_delta.text.encode())
        elif event.HasField("step_restarted"):
            # A token of plain words has at most 12 bytes, whatever the tokenizer.
            tokens += -(-streamed.pop(event.step_restarted.message_id, 0) // 12)
    return tokens


def check_effects(account: Account) -> Counter[str]:
    """Asserts that tool returns agree with the effects of the calls, and no effect happened twice.

    Returns:
        The number of calls with each status.
    """
    effects = {
        "effects__record": account.recorded,
        "memory_insert": account.edited,
        "archival_memory_insert": account.archived,
    }
    ends: Counter[str] = Counter()
    for run in account.runs:
        answers = [part.status for part in run.returns if part.name == _SEND_MESSAGE]
        # The effect of send_message is the call itself, which is stored with the reply. So no
        # fault can make it fail.
        assert answers == [_OK] * run.sends_message, run.describe()
        returns = [part for part in run.returns if part.name != _SEND_MESSAGE]
        for part in returns:
            if run.returned is not None:
                status, text = run.returned
                assert part.status == status, run.describe()
                assert text in part.content, run.describe()
                continue
            done = effects[part.name].get(run.tag, 0)
            ends[message_pb2.ToolStatus.Name(part.status)] += 1
            allowed = _EFFECTS[part.status]
            assert done in allowed, f"{done} effects of {run.describe()}"
        if run.kind not in {"plain", "long"} and run.approval is None:
            assert len(returns) == 1, run.describe()
    for name, counts in effects.items():
        tags = {run.tag for run in account.runs if any(p.name == name for p in run.returns)}
        mine = {tag: done for tag, done in counts.items() if done}
        assert set(mine) <= tags, f"{name} was called for {set(mine) - tags}"
        assert max(mine.values(), default=1) == 1, mine
    return ends


def check_log(account: Account) -> None:
    """Asserts that the conversation holds the messages of the runs, once and in order."""
    log, runs = account.log, account.runs
    assert [message.sequence for message in log] == list(range(len(log)))
    # Heartbeats of a V2 agent have the role of the user; they are left out here.
    tags = [
        text_of(message).split(" ")[1]
        for message in log
        if message.role == message_pb2.ROLE_USER
        and message_pb2.PROVENANCE_SYSTEM not in message.provenance
    ]
    expected = [run.tag for run in runs if run.kind != "answer"]
    assert tags == expected, f"{tags}\n{expected}"
    stored = {message.id: message for message in log}
    assert len(stored) == len(log)
    reported = [message for run in runs for message in run.messages]
    assert len({message.id for message in reported}) == len(reported)
    for message in reported:
        assert message.id in stored, f"{message.id} is not in the conversation"
        assert message.parts == stored[message.id].parts, "an event holds the message as stored"
    replies = [m.id for m in log if m.role in {message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL}]
    ids = {message.id for message in reported}
    assert set(replies) <= ids, "every stored reply was reported by an event"
    for message, following in zip(log, [*log[1:], None], strict=True):
        calls = [p.tool_call.tool_call_id for p in message.parts if p.HasField("tool_call")]
        if calls and message.role == message_pb2.ROLE_ASSISTANT:
            assert following is not None
            parts = [p.tool_return for p in following.parts if p.HasField("tool_return")]
            assert [part.tool_call_id for part in parts] == calls, "a call has its return"


def check_files(account: Account) -> None:
    """Asserts that each acknowledged upload is there once, as it was sent, and was prepared."""
    listed = sorted((file.name, file.content_hash) for file in account.listed)
    assert listed == sorted((file.name, file.content_hash) for file in account.uploaded)
    assert all(file.ready for file in account.listed), account.listed
