"""The tasks of an agent as a list, from its runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import a2a_pb2 as a2a
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)

from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.http.a2a.task_views import TaskView
from strata.gateway.http.calls import approvals_of

MAX_RUNS = 5_000
"""Only the tasks of this many of the newest runs are listed: each page reads all of them."""

_RUNS_PAGE = 500
# The possible states of the last run of a task. The run of a task that waits, or that no caller
# answered in time, is completed.
_RUN_STATES: dict[a2a.TaskState, Sequence[pb.RunState.ValueType]] = {
    a2a.TASK_STATE_UNSPECIFIED: (),
    a2a.TASK_STATE_SUBMITTED: (pb.RUN_STATE_QUEUED,),
    a2a.TASK_STATE_WORKING: (pb.RUN_STATE_RUNNING, pb.RUN_STATE_CANCELLING),
    a2a.TASK_STATE_INPUT_REQUIRED: (pb.RUN_STATE_COMPLETED,),
    a2a.TASK_STATE_COMPLETED: (pb.RUN_STATE_COMPLETED,),
    a2a.TASK_STATE_FAILED: (pb.RUN_STATE_FAILED, pb.RUN_STATE_COMPLETED),
    a2a.TASK_STATE_CANCELED: (pb.RUN_STATE_CANCELLED,),
}


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A page of the tasks of an agent.

    Attributes:
        tasks: The tasks, most recently changed first. Their contexts are the ids of
            conversations, and their replies are left out.
        next_page_token: Empty at the end.
        page_size: How many tasks a page has.
        total_size: How many tasks all pages have.
    """

    tasks: Sequence[TaskView]
    next_page_token: str
    page_size: int
    total_size: int


def check_list_request(request: a2a.ListTasksRequest) -> None:
    """Checks the sizes and the page token of a request.

    Raises:
        InvalidParamsError: One of them is not valid.
    """
    validate_history_length(request)
    if request.HasField("page_size"):
        validate_page_size(request.page_size)
    if request.page_token and decode_list_tasks_cursor(request.page_token) is None:
        raise InvalidParamsError("pageToken does not come from a list of tasks.")


async def page_of_tasks(
    runs: Any,
    agent_id: str,
    conversation_id: str,
    request: a2a.ListTasksRequest,
    metadata: Any,
) -> TaskPage:
    """Returns a page of the tasks of an agent.

    Args:
        runs: A stub of the run service.
        agent_id: The agent.
        conversation_id: Only tasks of this conversation; empty for all.
        request: A request that `check_list_request` accepts.
        metadata: The caller's credentials.

    Raises:
        AioRpcError: A call failed.
    """
    states = _RUN_STATES.get(request.status)
    last_runs = (
        []
        if states is None
        else [run async for run in _runs(runs, agent_id, conversation_id, states, metadata)]
    )
    approvals: Sequence[pb.Approval] = ()
    # A list filtered by states may contain a run without the run that asked for the decisions.
    if last_runs and (states or any(map(_asked, last_runs))):
        approvals = [
            approval
            async for approval in approvals_of(runs, agent_id, metadata, include_decided=True)
        ]
    tasks = sorted(
        (task for task in _tasks(last_runs, approvals) if _is_asked_for(task, request)),
        key=_place,
        reverse=True,
    )
    size = request.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
    cursor = decode_list_tasks_cursor(request.page_token) if request.page_token else None
    rest = tasks if cursor is None else [task for task in tasks if _place(task) < _key(cursor)]
    page = rest[:size]
    return TaskPage(
        page,
        encode_list_tasks_cursor(_cursor(page[-1])) if len(rest) > size else "",
        size,
        len(tasks),
    )


async def _runs(
    runs: Any,
    agent_id: str,
    conversation_id: str,
    states: Sequence[pb.RunState.ValueType],
    metadata: Any,
) -> AsyncIterator[pb.Run]:
    token, count = "", 0
    while count < MAX_RUNS:
        page = await runs.ListRuns(
            pb.ListRunsRequest(
                agent_id=agent_id,
                conversation_id=conversation_id,
                states=states,
                page_size=min(_RUNS_PAGE, MAX_RUNS - count),
                page_token=token,
            ),
            metadata=metadata,
        )
        for run in page.runs:
            yield run
        token, count = page.next_page_token, count + len(page.runs)
        if not token:
            break


def _tasks(runs: Sequence[pb.Run], approvals: Sequence[pb.Approval]) -> Iterator[TaskView]:
    """Yields the tasks whose last runs are among the given runs."""
    of_run = {approval.run_id: approval for approval in approvals}
    asking = {
        answered.answer_run_id: answered.run_id for answered in approvals if answered.answer_run_id
    }
    for run in runs:
        approval = of_run.get(run.id)
        if approval is not None and approval.answer_run_id:
            continue
        task = TaskView.of_run(run, run.conversation_id)
        while (first_run_id := asking.get(task.id)) is not None:
            task.id = first_run_id
        if not task.under_way:
            task.end_without_reply(run, approval)
        yield task


def _asked(run: pb.Run) -> bool:
    return bool(run.stop_reason == run_event_pb2.STOP_REASON_REQUIRES_APPROVAL)


def _is_asked_for(task: TaskView, request: a2a.ListTasksRequest) -> bool:
    if request.status and task.state != request.status:
        return False
    return (
        not request.HasField("status_timestamp_after")
        or task.time.ToNanoseconds() >= request.status_timestamp_after.ToNanoseconds()
    )


def _cursor(task: TaskView) -> ListTasksCursor:
    return ListTasksCursor(task.time.ToNanoseconds(), task.id)


def _key(cursor: ListTasksCursor) -> tuple[int, str]:
    return cursor.timestamp_ns or 0, cursor.task_id


def _place(task: TaskView) -> tuple[int, str]:
    return _key(_cursor(task))
