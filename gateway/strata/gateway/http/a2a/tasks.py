"""Tasks of A2A, which are runs.

A task has the id of the run that began it. If that run waits for decisions about tool calls, the
run that continues with the answer belongs to the same task, and so on. All of it is in the event
logs of the runs, so any replica serves any task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from a2a.types import a2a_pb2 as a2a
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from strata.api.agent_loop.v1 import agent_service_pb2, agent_service_pb2_grpc
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.api.gateway.v1 import run_service_pb2_grpc
from strata.gateway.http.a2a.inputs import (
    check_message,
    decisions_of,
    message_input,
    request_id_of,
)
from strata.gateway.http.a2a.replies import RunReply
from strata.gateway.http.a2a.task_lists import TaskPage, check_list_request, page_of_tasks
from strata.gateway.http.a2a.task_views import TaskView, updates
from strata.gateway.http.calls import RunEvents, after_first, events_of_run
from strata.gateway.http.conversations import ExternalConversations
from strata.protocol.errors import Reason
from strata.protocol.status import from_rpc_error
from strata.shared.ids import is_id


class AgentTasks:
    """The tasks of one agent.

    All methods raise `grpc.aio.AioRpcError` if a call of the gateway fails.

    Args:
        channel: Calls the gateway.
        conversations: Finds the conversations that clients have named.
        agent: The agent.
        metadata: The caller's credentials.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        conversations: ExternalConversations,
        agent: agent_service_pb2.Agent,
        metadata: Any,
    ) -> None:
        self._runs: Any = run_service_pb2_grpc.RunServiceStub(channel)
        self._agents: Any = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._conversations = conversations
        self._agent = agent
        self._metadata = metadata

    async def get(self, task_id: str) -> TaskView:
        """Returns a task, from the stored events of its runs.

        Raises:
            TaskNotFoundError: There is none.
        """
        unknown = TaskNotFoundError(f"The agent has no task '{task_id}'.")
        if not is_id(task_id, "run"):
            raise unknown
        run = await self._run(task_id)
        if run.agent_id != self._agent.id:
            raise unknown
        task = TaskView.of_run(run, await self._context(run.conversation_id))
        if not task.under_way:
            task.end(await self._stored_reply(task.run_id))
            await self._add_later_runs(task)
        return task

    async def list(self, request: a2a.ListTasksRequest) -> TaskPage:
        """Returns a page of the tasks, most recently changed first.

        Raises:
            InvalidParamsError: The request is not valid.
        """
        check_list_request(request)
        conversation_id = await self._known_conversation(request.context_id)
        if conversation_id is None:
            return TaskPage((), "", request.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE, 0)
        page = await page_of_tasks(
            self._runs, self._agent.id, conversation_id, request, self._metadata
        )
        contexts: dict[str, str] = {}
        for task in page.tasks:
            if request.include_artifacts:
                await self._add_replies(task)
            if task.context_id not in contexts:
                contexts[task.context_id] = await self._context(task.context_id)
            task.context_id = contexts[task.context_id]
        return page

    async def send(self, request: a2a.SendMessageRequest) -> TaskView:
        """Sends a message; returns its task when it ends, or immediately if the client requests it.

        Raises:
            A2AError: The message cannot be sent.
        """
        check_message(request)
        message = request.message
        if request.configuration.return_immediately and not message.task_id:
            fields = await self._new_message(message)
            started = await self._runs.StartRun(
                pb.StartRunRequest(**fields), metadata=self._metadata
            )
            task = TaskView.of_run(started.run, message.context_id or fields["conversation_id"])
            # A repeated message may be that of a task that has ended or waits.
            return task if task.under_way else await self.get(task.id)
        task, events = await self._begin(message)
        if request.configuration.return_immediately:
            if events is not None:
                await events.aclose()
            return task
        while events is not None:
            reply = RunReply()
            async for event in events:
                reply.apply(event)
            task.end(reply)
            events = await self._later_events(task)
        return task

    async def send_streaming(
        self, request: a2a.SendMessageRequest
    ) -> AsyncIterator[a2a.StreamResponse]:
        """Sends a message and returns the events of its task.

        Raises:
            A2AError: The message cannot be sent.
        """
        check_message(request)
        task, events = await self._begin(request.message)
        return updates(task, events, self._later_events)

    async def subscribe(self, task_id: str) -> AsyncIterator[a2a.StreamResponse]:
        """Returns the events of a task that has not ended: all events of its last run.

        Raises:
            TaskNotFoundError: There is none.
            UnsupportedOperationError: It has ended.
        """
        task = await self.get(task_id)
        if not task.under_way and not task.waits:
            raise UnsupportedOperationError("The task has ended; get it instead.")
        return updates(task, self._events(task), self._later_events)

    async def cancel(self, task_id: str) -> TaskView:
        """Cancels a task and returns it.

        Raises:
            TaskNotFoundError: There is none.
            TaskNotCancelableError: It has ended, or waits for decisions.
        """
        task = await self.get(task_id)
        if task.waits:
            raise TaskNotCancelableError(
                "The task waits for decisions about tool calls; deny the calls instead."
            )
        if not task.under_way:
            raise TaskNotCancelableError("The task has ended.")
        cancel = pb.CancelRunRequest(run_id=task.run_id)
        await self._runs.CancelRun(cancel, metadata=self._metadata)
        return await self.get(task_id)

    async def _begin(self, message: a2a.Message) -> tuple[TaskView, RunEvents | None]:
        """Sends a message and returns its task, with the events of the run that it begins.

        For an answer that is sent again, the task is returned as it is now, with the events of its
        last run; None if that has ended.
        """
        if message.task_id:
            return await self._begin_answer(message)
        fields = await self._new_message(message)
        call = self._runs.SendMessage(pb.SendMessageRequest(**fields), metadata=self._metadata)
        run, events = await _begun(call)
        return TaskView.of_run(run, message.context_id or fields["conversation_id"]), events

    async def _begin_answer(self, message: a2a.Message) -> tuple[TaskView, RunEvents | None]:
        task = await self.get(message.task_id)
        if message.context_id not in ("", task.context_id):
            raise InvalidParamsError("message.contextId is not the context of message.taskId.")
        request_id = request_id_of(self._agent.id, message)
        answered_id = task.answered.get(request_id)
        call = self._runs.RespondToApproval(
            pb.RespondToApprovalRequest(
                request_id=request_id,
                approval_id=answered_id or _awaited_approval(task).approval_id,
                decisions=decisions_of(message),
            ),
            metadata=self._metadata,
        )
        # A repeated answer is sent as well: the gateway refuses it if its decisions differ.
        run, events = await _begun(call)
        if answered_id is None:
            task.continue_with(run)
            return task, events
        await events.aclose()
        return task, self._events(task)

    def _events(self, task: TaskView) -> RunEvents | None:
        """Returns the events of the last run of a task; None if it has ended."""
        if not task.under_way:
            return None
        request = pb.StreamRunRequest(run_id=task.run_id)
        return events_of_run(self._runs.StreamRun(request, metadata=self._metadata))

    async def _later_events(self, task: TaskView) -> RunEvents | None:
        """Adds the runs that have continued a task since its last run ended.

        If a message is sent again, the run that it began may have been continued long ago.

        Returns:
            The events of the last run; None if it has ended.
        """
        await self._add_later_runs(task)
        return self._events(task)

    async def _add_later_runs(self, task: TaskView) -> None:
        while task.approval is not None:
            approval = await self._approval(task.approval.approval_id)
            if not approval.decided:
                return
            if not approval.answer_run_id:
                task.lapse()
                return
            task.continue_with(await self._run(approval.answer_run_id))
            if not task.under_way:
                task.end(await self._stored_reply(task.run_id))

    async def _new_message(self, message: a2a.Message) -> dict[str, Any]:
        """Returns the fields of a request that sends a message which begins a task."""
        message_to_send = message_input(message)
        request_id = request_id_of(self._agent.id, message)
        return {
            "request_id": request_id,
            "agent_id": self._agent.id,
            "conversation_id": await self._conversation(message.context_id, request_id),
            "messages": [message_to_send],
        }

    async def _conversation(self, context_id: str, request_id: str) -> str:
        if is_id(context_id, "conversation"):
            return context_id
        if context_id:
            return await self._conversations.find(self._agent.id, context_id, self._metadata)
        started = await self._agents.CreateConversation(
            agent_service_pb2.CreateConversationRequest(
                request_id=request_id, agent_id=self._agent.id
            ),
            metadata=self._metadata,
        )
        return str(started.conversation.id)

    async def _known_conversation(self, context_id: str) -> str | None:
        """Returns the conversation of a context; empty for no context, None if there is none."""
        if not context_id or is_id(context_id, "conversation"):
            return context_id
        return await self._conversations.known(self._agent.id, context_id, self._metadata)

    async def _add_replies(self, task: TaskView) -> None:
        """Adds the replies of the runs of a task that have ended, as far as they are stored."""
        try:
            task.artifacts = (await self.get(task.id)).artifacts
        except grpc.aio.AioRpcError as error:
            if from_rpc_error(error).reason is not Reason.RUN_EVENTS_DELETED:
                raise

    async def _context(self, conversation_id: str) -> str:
        """Returns the context of a conversation: the id that the client gave it, if it did."""
        response = await self._agents.GetConversation(
            agent_service_pb2.GetConversationRequest(conversation_id=conversation_id),
            metadata=self._metadata,
        )
        return response.conversation.external_id or conversation_id

    async def _run(self, run_id: str) -> pb.Run:
        response = await self._runs.GetRun(pb.GetRunRequest(run_id=run_id), metadata=self._metadata)
        run: pb.Run = response.run
        return run

    async def _approval(self, approval_id: str) -> pb.Approval:
        response = await self._runs.GetApproval(
            pb.GetApprovalRequest(approval_id=approval_id), metadata=self._metadata
        )
        approval: pb.Approval = response.approval
        return approval

    async def _stored_reply(self, run_id: str) -> RunReply:
        """Returns the reply of a run that has ended."""
        reply = RunReply()
        call = self._runs.StreamRun(
            pb.StreamRunRequest(run_id=run_id, stream_tokens=False), metadata=self._metadata
        )
        async for event in events_of_run(call):
            reply.apply(event)
        return reply


async def _begun(call: Any) -> tuple[pb.Run, RunEvents]:
    """Returns the run that a call has begun, and its events.

    The first event names the run, so a message that is refused begins no stream.
    """
    events = events_of_run(call)
    first = await anext(events)
    run = pb.Run(id=first.run_id, state=pb.RUN_STATE_RUNNING, create_time=first.create_time)
    return run, after_first(first, events)


def _awaited_approval(task: TaskView) -> message_pb2.ApprovalRequestPart:
    """Returns the tool calls for which a task waits.

    Raises:
        UnsupportedOperationError: It does not wait.
    """
    if task.under_way:
        raise UnsupportedOperationError(
            "The task is under way. A message without taskId begins another one after it."
        )
    if task.approval is None:
        raise UnsupportedOperationError(
            "The task has ended. A message without taskId begins another one."
        )
    return task.approval
