"""Tasks as clients see them, from runs and from events of runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from a2a.types import a2a_pb2 as a2a
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.http.a2a.inputs import question
from strata.gateway.http.a2a.replies import Replaced, RunReply
from strata.gateway.http.calls import RunEvents
from strata.gateway.runs.domain.runs import trigger_of
from strata.gateway.runs.domain.states import Trigger
from strata.shared.convert.runs import STOP_REASONS
from strata.shared.stop_reasons import StopReason

_ARTIFACT = "reply"
_OPEN_STATES = {
    pb.RUN_STATE_QUEUED: a2a.TASK_STATE_SUBMITTED,
    pb.RUN_STATE_RUNNING: a2a.TASK_STATE_WORKING,
    pb.RUN_STATE_CANCELLING: a2a.TASK_STATE_WORKING,
}
_UNDER_WAY = (a2a.TASK_STATE_SUBMITTED, a2a.TASK_STATE_WORKING)
_END_STATES = {
    Trigger.COMPLETE: a2a.TASK_STATE_COMPLETED,
    Trigger.FAIL: a2a.TASK_STATE_FAILED,
    Trigger.STOP: a2a.TASK_STATE_CANCELED,
}


@dataclass
class TaskView:
    """A task as it is.

    Attributes:
        id: Its id, which is the id of its first run.
        context_id: Its context: the external id of the conversation, or else its id.
        run_id: Its last run.
        state: Its state.
        time: When it came into the state.
        message: The parts of a message about the state; empty for none.
        artifacts: The replies of its runs that have ended.
        approval: The tool calls for which it waits, if it does.
        answered: Ids of the approvals that were decided, by the request id of the decision.
    """

    id: str
    context_id: str
    run_id: str
    state: a2a.TaskState
    time: Timestamp
    message: Sequence[a2a.Part] = ()
    artifacts: list[a2a.Artifact] = field(default_factory=list)
    approval: message_pb2.ApprovalRequestPart | None = None
    answered: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_run(cls, run: pb.Run, context_id: str) -> TaskView:
        """Returns the task that begins with a run."""
        task = cls(run.id, context_id, run.id, a2a.TASK_STATE_SUBMITTED, run.create_time)
        task.continue_with(run)
        return task

    @property
    def under_way(self) -> bool:
        """Whether a run of the task is queued or running."""
        return self.state in _UNDER_WAY

    @property
    def waits(self) -> bool:
        """Whether the task waits for decisions about tool calls."""
        return self.state == a2a.TASK_STATE_INPUT_REQUIRED

    def continue_with(self, run: pb.Run) -> None:
        """Sets the last run, which continues the task; if it has ended, call `end` as well."""
        self.run_id = run.id
        if self.approval is not None and run.request_id:
            self.answered[run.request_id] = self.approval.approval_id
        self.message, self.approval = (), None
        # The state of a run that has ended is known from its events.
        self.state = _OPEN_STATES.get(run.state, a2a.TASK_STATE_UNSPECIFIED)
        self.time = run.start_time if run.HasField("start_time") else run.create_time

    def end(self, reply: RunReply) -> None:
        """Sets the reply and the end of the last run."""
        if reply.text:
            self.artifacts.append(_artifact(self.run_id, reply.text))
        event = reply.end or run_event_pb2.RunEvent()
        finished = event.run_finished
        self.time = event.create_time
        reason = STOP_REASONS.from_proto.get(finished.stop_reason, StopReason.ERROR)
        if reason is StopReason.REQUIRES_APPROVAL and reply.approval is not None:
            self._wait(reply.approval)
        else:
            self._stop(reason, finished.error.message)

    def end_without_reply(self, run: pb.Run, approval: pb.Approval | None) -> None:
        """Sets the end of the last run, from the run instead of its events.

        Args:
            run: The last run, which has ended.
            approval: The request for decisions with which it ended, if it did.
        """
        self.time = run.finish_time
        reason = STOP_REASONS.from_proto.get(run.stop_reason, StopReason.ERROR)
        if reason is not StopReason.REQUIRES_APPROVAL or approval is None:
            self._stop(reason, run.error.message)
        elif approval.decided:
            self.lapse()
        else:
            self._wait(approval.request)

    def lapse(self) -> None:
        """Records that no decision about the tool calls came in time."""
        self.state, self.approval = a2a.TASK_STATE_FAILED, None
        self.message = [a2a.Part(text="Nobody decided about the tool calls in time.")]

    def _wait(self, approval: message_pb2.ApprovalRequestPart) -> None:
        self.state, self.approval = a2a.TASK_STATE_INPUT_REQUIRED, approval
        self.message = question(approval)

    def _stop(self, reason: StopReason, error: str) -> None:
        self.state = _END_STATES[trigger_of(reason)]
        text = error
        if not text and reason not in (StopReason.END_TURN, StopReason.TOOL_RULE):
            text = f"The run ended with {reason.value}."
        self.message = [a2a.Part(text=text)] if text else ()

    def status(self) -> a2a.TaskStatus:
        """Returns the status."""
        status = a2a.TaskStatus(state=self.state, timestamp=self.time)
        if self.message:
            status.message.CopyFrom(
                a2a.Message(
                    message_id=f"{self.run_id}-status",
                    task_id=self.id,
                    context_id=self.context_id,
                    role=a2a.ROLE_AGENT,
                    parts=self.message,
                )
            )
        return status

    def build(self) -> a2a.Task:
        """Returns the task in the form of the protocol."""
        return a2a.Task(
            id=self.id,
            context_id=self.context_id,
            status=self.status(),
            artifacts=self.artifacts,
        )


async def updates(
    task: TaskView,
    events: RunEvents | None,
    later_events: Callable[[TaskView], Awaitable[RunEvents | None]],
) -> AsyncIterator[a2a.StreamResponse]:
    """Returns the events of a task: the task itself, then the changes until it ends or waits.

    Args:
        task: The task before its last run, or after it if that has ended.
        events: All events of that run; None if it has ended.
        later_events: Adds the runs that have continued a task since its last run ended; returns the
            events of the last one, None if it has ended.
    """
    yield a2a.StreamResponse(task=task.build())
    while events is not None:
        reply = RunReply()
        has_begun = False
        async with aclosing(events):
            async for event in events:
                change = reply.apply(event)
                if change is not None:
                    artifact = _artifact(task.run_id, change.text)
                    append = has_begun and not isinstance(change, Replaced)
                    yield _artifact_update(task, artifact, append=append)
                    has_begun = True
        if has_begun:
            # Clients that show whole artifacts only wait for the mark of the last piece.
            yield _artifact_update(task, _artifact(task.run_id, ""), append=True, last=True)
        task.end(reply)
        shown = len(task.artifacts)
        events = await later_events(task)
        for artifact in task.artifacts[shown:]:
            yield _artifact_update(task, artifact, append=False, last=True)
        yield a2a.StreamResponse(
            status_update=a2a.TaskStatusUpdateEvent(
                task_id=task.id, context_id=task.context_id, status=task.status()
            )
        )


def _artifact(run_id: str, text: str) -> a2a.Artifact:
    return a2a.Artifact(artifact_id=run_id, name=_ARTIFACT, parts=[a2a.Part(text=text)])


def _artifact_update(
    task: TaskView, artifact: a2a.Artifact, *, append: bool, last: bool = False
) -> a2a.StreamResponse:
    return a2a.StreamResponse(
        artifact_update=a2a.TaskArtifactUpdateEvent(
            task_id=task.id,
            context_id=task.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last,
        )
    )
