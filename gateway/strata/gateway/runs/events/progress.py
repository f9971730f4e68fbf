"""Progress of a run, computed from its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1.message_pb2 import ROLE_APPROVAL, ROLE_ASSISTANT
from strata.gateway.runs.convert.approvals import asked_approval
from strata.gateway.runs.convert.runs import taint_of
from strata.gateway.runs.domain.approvals import AskedApproval
from strata.shared.convert.usage import usage_from_proto
from strata.shared.usage import Usage


@dataclass(slots=True)
class _UnstoredCalls:
    """Tokens of the model calls for one message that are in no stored message.

    Attributes:
        attempt: The attempt that made them.
        usage: Tokens of the finished calls.
        under_way: Whether a reply is expected.
        prompt_tokens: Estimated prompt tokens of the open call.
        bytes_per_token: UTF-8 bytes per token of its model.
        streamed_bytes: Bytes of its reply that were streamed.
    """

    attempt: int
    usage: Usage = field(default_factory=Usage)
    under_way: bool = False
    prompt_tokens: int = 0
    bytes_per_token: float = 1.0
    streamed_bytes: int = 0

    @property
    def cost(self) -> Usage:
        """Tokens of all model calls; estimated for an open call."""
        if not self.under_way:
            return self.usage
        completion = -int(-self.streamed_bytes // self.bytes_per_token)
        return self.usage + Usage(self.prompt_tokens, completion, estimated=True)


@dataclass(slots=True)
class RunProgress:
    """Progress of a run, to recognise repeated events and to count the tokens of lost calls.

    Attributes:
        step: Number of the last step.
        open_step: Number of the open step; 0 for none.
        open_step_id: Id of that step, or of the last one if none is open.
        open_message_id: Id of the message that it streams; empty if unknown.
        usage: Tokens of the stored replies.
        message_ids: Ids of the stored messages.
        asked: The run's request for approval.
        taint: Labels of untrusted content in the context of the last model call.
        unstored_text: Whether a client may show text that is neither stored nor withdrawn.
        has_begun: Whether the agent loop has stored the inputs of the run.
        has_effects: Whether a tool may have been called, or a reply was stored.
        last_message: Id and sequence of the last stored message.
        relayed: In the run of a group, the last relayed sequence of each member's run.
        member_steps: In the run of a group, the step numbers of each member's run, in order.
    """

    step: int = 0
    open_step: int = 0
    open_step_id: str = ""
    open_message_id: str = ""
    usage: Usage = field(default_factory=Usage)
    message_ids: set[str] = field(default_factory=set)
    asked: AskedApproval | None = None
    taint: tuple[str, ...] = ()
    unstored_text: bool = False
    has_begun: bool = False
    has_effects: bool = False
    last_message: tuple[str, int] = ("", -1)
    relayed: dict[str, int] = field(default_factory=dict)
    member_steps: dict[str, list[int]] = field(default_factory=dict)
    _given_up: bool = False
    _calls: dict[str, _UnstoredCalls] = field(default_factory=dict)
    _tool_count: int = 0

    @property
    def mark(self) -> tuple[int, int, int, int]:
        """A value that changes with each progress of the run."""
        relayed = sum(self.relayed.values())
        return len(self.message_ids), self.step, self._tool_count, relayed

    def has_relayed(self, member: run_event_pb2.EventMember) -> bool:
        """Whether an event of a member's run is in the log of the group's run."""
        return 0 < member.sequence <= self.relayed.get(member.run_id, 0)

    def number_member_step(self, event: run_event_pb2.RunEvent) -> None:
        """Replaces the step number of a relayed event by the number in the group's run.

        Steps are numbered in the order of their start; members may answer concurrently.
        """
        for kind in ("step_started", "step_restarted"):
            if event.HasField(kind):
                step = getattr(event, kind)
                numbers = self.member_steps.get(event.member.run_id, [])
                has_number = 0 < step.step <= len(numbers)
                step.step = numbers[step.step - 1] if has_number else self.step + 1

    def continues(self, step: run_event_pb2.StepStarted) -> bool:
        """Whether a step of a new attempt is the open one, with the same reply."""
        same = step.step == self.open_step and step.message_id == self.open_message_id
        return same and bool(step.message_id)

    def repeated_by(self, message: message_pb2.Message) -> bool:
        """Whether a stored reply comes from another attempt at the open step than was streamed.

        The attempt that made it was lost together with its `step_started`, which would have
        withdrawn the streamed text.
        """
        is_reply = message.role in (ROLE_ASSISTANT, ROLE_APPROVAL)
        streamed = self.unstored_text and self.open_message_id
        return bool(is_reply and streamed and message.id != self.open_message_id)

    def taken_over(self) -> None:
        """Completes the progress after reading an earlier holder's log.

        Deltas are not in the log, so pieces of an open step may have been shown.
        """
        self.unstored_text = self.open_step > 0 and not self._given_up

    def note_request(
        self, message_id: str, prompt_tokens: int, bytes_per_token: float, attempt: int
    ) -> None:
        """Records the start of a model call."""
        calls = self._calls.setdefault(message_id, _UnstoredCalls(attempt))
        calls.under_way, calls.streamed_bytes = True, 0
        # It is zero only in messages of older processes.
        calls.prompt_tokens, calls.bytes_per_token = prompt_tokens, bytes_per_token or 1.0

    def note_reply(self, message_id: str, usage: Usage, attempt: int) -> None:
        """Records the tokens of a model call until its reply is stored."""
        if message_id not in self.message_ids:
            calls = self._calls.setdefault(message_id, _UnstoredCalls(attempt))
            calls.usage, calls.under_way = calls.usage + usage, False

    def unstored_usage(self, attempt: int) -> Usage:
        """Returns the tokens of an attempt's model calls that are in no stored message."""
        return sum((c.cost for c in self._calls.values() if c.attempt == attempt), Usage())

    def lost_usage(self, attempt: int) -> Usage:
        """Returns the tokens of the attempts before this one."""
        return sum((c.cost for c in self._calls.values() if c.attempt < attempt), Usage())

    def note(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Processes an event."""
        if event.HasField("member"):
            self._note_relayed(event, kind)
            return
        match kind:
            case "run_started":
                self.has_begun = True
            case "step_started":
                self.step = max(self.step, event.step_started.step)
                self.open_step = event.step_started.step
                self.taint = taint_of(event.step_started.taint)
                self.open_step_id = event.step_started.step_id
                self.open_message_id = event.step_started.message_id
                self.unstored_text = self._given_up = False
            case "text_delta" | "reasoning_delta" | "tool_call_delta":
                self.unstored_text = True
                self._note_piece(event, kind)
            case "step_restarted":
                self.unstored_text, self._given_up = False, event.step_restarted.given_up
            case "message_stored":
                message = event.message_stored.message
                self.message_ids.add(message.id)
                if message.sequence > self.last_message[1]:
                    self.last_message = message.id, message.sequence
                self._settle(message)
                # A request for approval is the model's reply, too, and has its tokens.
                if message.role in (ROLE_ASSISTANT, ROLE_APPROVAL):
                    self.usage += usage_from_proto(message.usage)
                    self.open_step = 0
                    self.unstored_text = False
                    self.has_effects = True
            case "tool_started":
                self.has_effects = True
            case "tool_finished":
                self._tool_count += 1
            case "approval_requested":
                self.asked = asked_approval(event)
            case _:
                pass

    def _note_relayed(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Processes an event of a group member; the member's run counts everything else."""
        if event.member.sequence:
            self.relayed[event.member.run_id] = event.member.sequence
        if kind == "step_started":
            number = event.step_started.step
            self.step = max(self.step, number)
            numbers = self.member_steps.setdefault(event.member.run_id, [])
            if number not in numbers:
                numbers.append(number)
        elif kind == "turn_finished":
            self.usage += usage_from_proto(event.turn_finished.usage)
            labels = {*self.taint, *taint_of(event.turn_finished.taint)}
            self.taint = tuple(sorted(labels))

    def _note_piece(self, event: run_event_pb2.RunEvent, kind: str) -> None:
        piece = getattr(event, kind)
        calls = self._calls.get(piece.message_id)
        if calls is not None:
            text = piece.name + piece.arguments if kind == "tool_call_delta" else piece.text
            calls.streamed_bytes += len(text.encode())

    def _settle(self, message: message_pb2.Message) -> None:
        """Keeps the tokens of the calls for a message that its stored usage does not cover."""
        calls = self._calls.pop(message.id, None)
        if calls is not None:
            left = calls.usage.less(usage_from_proto(message.usage))
            if left != Usage():
                self._calls[message.id] = _UnstoredCalls(calls.attempt, left)
