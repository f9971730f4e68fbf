"""What the events of a run say about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.api.common.v1 import run_event_pb2
from strata.api.common.v1.message_pb2 import ROLE_APPROVAL, ROLE_ASSISTANT
from strata.gateway.runs.approvals import AskedApproval
from strata.gateway.runs.convert import taint_of, usage_of
from strata.gateway.runs.convert_approvals import asked_approval
from strata.gateway.runs.domain import Usage


@dataclass(slots=True)
class Progress:
    """What the log says so far, to tell doubles and to account for a run that is cut off.

    Attributes:
        step: Number of the last step.
        open_step: Number of the step under way; 0 for none.
        restarted_step: The step that was last told to be done again.
        usage: Tokens of the replies stored.
        message_ids: The messages stored.
        asked: What the run asks a person for.
        taint: Labels of strangers' text in the context of the last model call.
        began: A tool may have been called, or a reply was stored.
    """

    step: int = 0
    open_step: int = 0
    restarted_step: int = 0
    usage: Usage = field(default_factory=Usage)
    message_ids: set[str] = field(default_factory=set)
    asked: AskedApproval | None = None
    taint: tuple[str, ...] = ()
    began: bool = False

    def note(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Takes an event in."""
        match kind:
            case "step_started":
                self.step = max(self.step, event.step_started.step)
                self.open_step = event.step_started.step
                self.taint = taint_of(event.step_started.taint)
            case "step_restarted":
                self.restarted_step = event.step_restarted.step
            case "message_stored":
                message = event.message_stored.message
                self.message_ids.add(message.id)
                # A request for approval is the model's reply, too, and has its tokens.
                if message.role in (ROLE_ASSISTANT, ROLE_APPROVAL):
                    self.usage += usage_of(message.usage)
                    self.open_step = 0
                    self.began = True
            case "tool_started":
                self.began = True
            case "approval_requested":
                self.asked = asked_approval(event.approval_requested.approval)
            case _:
                pass
