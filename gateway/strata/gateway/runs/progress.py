"""What the events of a run say about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1.message_pb2 import ROLE_APPROVAL, ROLE_ASSISTANT
from strata.gateway.runs.approvals import AskedApproval
from strata.gateway.runs.convert import taint_of, usage_of
from strata.gateway.runs.convert_approvals import asked_approval
from strata.gateway.runs.domain import Usage


@dataclass(slots=True)
class _Calls:
    """What the model calls for one message cost that are not in a stored message.

    Attributes:
        attempt: The attempt that made them.
        usage: Tokens of those that have ended.
        under_way: A reply is expected.
        prompt_tokens: Estimated prompt of the call under way.
        bytes_per_token: UTF-8 bytes of a token of its model.
        streamed_bytes: What of its reply was streamed.
    """

    attempt: int
    usage: Usage = field(default_factory=Usage)
    under_way: bool = False
    prompt_tokens: int = 0
    bytes_per_token: float = 1.0
    streamed_bytes: int = 0

    @property
    def cost(self) -> Usage:
        """Tokens of all of them; those of a call under way are estimated."""
        if not self.under_way:
            return self.usage
        completion = -int(-self.streamed_bytes // self.bytes_per_token)
        total = self.prompt_tokens + completion
        return self.usage + Usage(self.prompt_tokens, completion, total, estimated=True)


@dataclass(slots=True)
class Progress:
    """What the log says so far, to tell doubles and to account for a run that is cut off.

    Attributes:
        step: Number of the last step.
        open_step: Number of the step under way; 0 for none.
        open_step_id: Id of that step; of the last one if none is under way.
        open_message_id: Id of the message that it streams; empty if that is not known.
        usage: Tokens of the replies stored.
        message_ids: The messages stored.
        asked: What the run asks a person for.
        taint: Labels of strangers' text in the context of the last model call.
        unstored_text: A client may show a piece of a reply that is not stored nor withdrawn.
        began: A tool may have been called, or a reply was stored.
        last_message: Id and sequence of the last message stored.
        relayed: In the run of a group, how far the log of each run of a member was relayed.
        member_steps: The numbers that the steps of each of these runs have in this one, in order.
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
    began: bool = False
    last_message: tuple[str, int] = ("", -1)
    relayed: dict[str, int] = field(default_factory=dict)
    member_steps: dict[str, list[int]] = field(default_factory=dict)
    _given_up: bool = False
    _calls: dict[str, _Calls] = field(default_factory=dict)
    _tool_count: int = 0

    @property
    def mark(self) -> tuple[int, int, int, int]:
        """Differs whenever the run has come further."""
        relayed = sum(self.relayed.values())
        return len(self.message_ids), self.step, self._tool_count, relayed

    def has_relayed(self, member: run_event_pb2.EventMember) -> bool:
        """Returns whether an event of a member's run is in the log of the group's run."""
        return 0 < member.sequence <= self.relayed.get(member.run_id, 0)

    def number_member_step(self, event: run_event_pb2.RunEvent) -> None:
        """Gives a relayed event of a step the number that the step has in the run of the group.

        Steps are numbered in the order in which they began; members may answer at the same time.
        """
        for kind in ("step_started", "step_restarted"):
            if event.HasField(kind):
                step = getattr(event, kind)
                numbers = self.member_steps.get(event.member.run_id, [])
                known = 0 < step.step <= len(numbers)
                step.step = numbers[step.step - 1] if known else self.step + 1

    def continues(self, step: run_event_pb2.StepStarted) -> bool:
        """Returns whether a step that an attempt tells of is the one under way, with its reply."""
        same = step.step == self.open_step and step.message_id == self.open_message_id
        return same and bool(step.message_id)

    def taken_over(self) -> None:
        """Ends the reading of an earlier holder's log.

        Deltas are not in the log: of a step under way, pieces may have been shown.
        """
        self.unstored_text = self.open_step > 0 and not self._given_up

    def note_request(
        self, message_id: str, prompt_tokens: int, bytes_per_token: float, attempt: int
    ) -> None:
        """Takes in that a model call begins, of which this is known."""
        calls = self._calls.setdefault(message_id, _Calls(attempt))
        calls.under_way, calls.streamed_bytes = True, 0
        # Zero only in a message of a process that does not know better.
        calls.prompt_tokens, calls.bytes_per_token = prompt_tokens, bytes_per_token or 1.0

    def note_reply(self, message_id: str, usage: Usage, attempt: int) -> None:
        """Takes in what a model call of an attempt cost; its reply counts once it is stored."""
        if message_id not in self.message_ids:
            calls = self._calls.setdefault(message_id, _Calls(attempt))
            calls.usage, calls.under_way = calls.usage + usage, False

    def unstored_usage(self, attempt: int) -> Usage:
        """Returns the tokens of an attempt's model calls that are in no stored message."""
        return sum((c.cost for c in self._calls.values() if c.attempt == attempt), Usage())

    def lost_usage(self, attempt: int) -> Usage:
        """Returns those of the attempts before this one, which it knows nothing of."""
        return sum((c.cost for c in self._calls.values() if c.attempt < attempt), Usage())

    def note(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Takes an event in."""
        if event.HasField("member"):
            self._note_relayed(event, kind)
            return
        match kind:
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
                    self.usage += usage_of(message.usage)
                    self.open_step = 0
                    self.unstored_text = False
                    self.began = True
            case "tool_started":
                self.began = True
            case "tool_finished":
                self._tool_count += 1
            case "approval_requested":
                self.asked = asked_approval(event.approval_requested.approval)
            case _:
                pass

    def _note_relayed(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Takes in an event of a member of a group; its own run accounts for the rest."""
        if event.member.sequence:
            self.relayed[event.member.run_id] = event.member.sequence
        if kind == "step_started":
            number = event.step_started.step
            self.step = max(self.step, number)
            numbers = self.member_steps.setdefault(event.member.run_id, [])
            if number not in numbers:
                numbers.append(number)
        elif kind == "turn_finished":
            self.usage += usage_of(event.turn_finished.usage)
            labels = {*self.taint, *taint_of(event.turn_finished.taint)}
            self.taint = tuple(sorted(labels))

    def _note_piece(self, event: run_event_pb2.RunEvent, kind: str) -> None:
        piece = getattr(event, kind)
        calls = self._calls.get(piece.message_id)
        if calls is not None:
            text = piece.name + piece.arguments if kind == "tool_call_delta" else piece.text
            calls.streamed_bytes += len(text.encode())

    def _settle(self, message: message_pb2.Message) -> None:
        """Leaves of the calls for a message what its stored tokens do not cover."""
        calls = self._calls.pop(message.id, None)
        if calls is not None:
            left = calls.usage.less(usage_of(message.usage))
            if left != Usage():
                self._calls[message.id] = _Calls(calls.attempt, left)
