"""Servicer of `RunService`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.api.gateway.v1 import run_service_pb2_grpc as pb_grpc
from strata.gateway.groups.managers import check_group
from strata.gateway.runs.clients import AgentDirectory, GroupDirectory, GrpcToolVersions
from strata.gateway.runs.convert import approvals
from strata.gateway.runs.convert import runs as convert
from strata.gateway.runs.convert.sent_text import SentText
from strata.gateway.runs.dispatch.dispatcher import Dispatcher
from strata.gateway.runs.domain.approvals import outdated
from strata.gateway.runs.domain.chains import check_chain, check_waits
from strata.gateway.runs.domain.memory_agents import FIRST_MARK
from strata.gateway.runs.domain.runs import (
    Accepted,
    NewRun,
    Run,
    RunFilter,
    RunKind,
    RunStore,
    is_group,
)
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.events.run_follower import RunFollower
from strata.gateway.runs.explanation.convert import explanation_to_pb, step_to_pb
from strata.gateway.runs.explanation.prices import ModelPrice
from strata.gateway.runs.explanation.spans import SpanBuilder
from strata.gateway.runs.ingestion import DocumentIngestion
from strata.gateway.runs.run_recorder import RunRecorder
from strata.protocol.errors import StrataError, invalid_field
from strata.shared.context import current_project, require_caller
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id, default_conversation_id
from strata.shared.logs import get_logger
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

RUN_ID_HEADER = "x-run-id"
"""Initial metadata of SendMessage with the id of the run, before its first event."""
_CANCEL_BATCH = 100

_log = get_logger(__name__)


class RunServicer(pb_grpc.RunServiceServicer):
    """The public API of runs.

    Args:
        store: The runs.
        dispatcher: Executes them.
        follower: Streams their events.
        agents: Checks that agents exist.
        groups: Reads groups.
        tools: Reads the versions of tools.
        chain_limit: Maximum number of runs in a chain of messages between agents.
        ingestion: Reads files into memory.
        prices: Prices of tokens by model handle.
        recorder: Records runs.
    """

    def __init__(
        self,
        store: RunStore,
        dispatcher: Dispatcher,
        follower: RunFollower,
        agents: AgentDirectory,
        groups: GroupDirectory,
        tools: GrpcToolVersions,
        ingestion: DocumentIngestion,
        *,
        chain_limit: int,
        prices: Mapping[str, ModelPrice],
        recorder: RunRecorder,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._follower = follower
        self._agents = agents
        self._groups = groups
        self._tools = tools
        self._ingestion = ingestion
        self._chain_limit = chain_limit
        self._prices = prices
        self._recorder = recorder

    async def SendMessage(
        self, request: pb.SendMessageRequest, context: Any
    ) -> AsyncIterator[pb.SendMessageResponse]:
        """Accepts a run and streams it; the run continues if the client leaves."""
        accepted = await self._accept(request, RunKind.FOREGROUND)
        await context.send_initial_metadata(((RUN_ID_HEADER, accepted.run.id),))
        tokens = not request.HasField("stream_tokens") or request.stream_tokens
        async for event in self._followed_events(request, accepted.run.id, 0, tokens=tokens):
            yield pb.SendMessageResponse(event=event)

    async def StartRun(self, request: pb.StartRunRequest, context: Any) -> pb.StartRunResponse:
        """Accepts a run."""
        accepted = await self._accept(request, RunKind.BACKGROUND)
        return pb.StartRunResponse(run=convert.run_to_pb(accepted.run))

    async def RespondToApproval(
        self, request: pb.RespondToApprovalRequest, context: Any
    ) -> AsyncIterator[pb.RespondToApprovalResponse]:
        """Accepts the run that continues with an answer, and streams it."""
        accepted = await self._answer(request)
        await context.send_initial_metadata(((RUN_ID_HEADER, accepted.run.id),))
        async for event in self._followed_events(request, accepted.run.id, 0, tokens=True):
            yield pb.RespondToApprovalResponse(event=event)

    async def ListApprovals(
        self, request: pb.ListApprovalsRequest, context: Any
    ) -> pb.ListApprovalsResponse:
        """Lists requests for approval, oldest first."""
        run_filter = approvals.approval_filter(request)
        limit = page_limit(request.page_size, maximum=100)
        key = decode_page_token(run_filter.scope(), request.page_token, (str,))
        after = str(key[0]) if key else None
        rows = await self._store.approvals(
            current_project(), run_filter, after=after, limit=limit + 1
        )
        page = Page.cut(rows, limit, run_filter.scope(), lambda approval: (approval.id,))
        return pb.ListApprovalsResponse(
            approvals=map(approvals.approval_to_pb, page.rows),
            next_page_token=page.next_page_token,
        )

    async def GetApproval(
        self, request: pb.GetApprovalRequest, context: Any
    ) -> pb.GetApprovalResponse:
        """Returns a request for approval."""
        approval_id = check_id(request.approval_id, "approval", field="approval_id")
        approval = await self._store.approval(current_project(), approval_id)
        return pb.GetApprovalResponse(approval=approvals.approval_to_pb(approval))

    async def StreamRun(
        self, request: pb.StreamRunRequest, context: Any
    ) -> AsyncIterator[pb.StreamRunResponse]:
        """Streams the events of a run after a sequence."""
        run_id = check_id(request.run_id, "run", field="run_id")
        if request.after_sequence < 0:
            raise invalid_field("after_sequence", "must not be negative")
        tokens = not request.HasField("stream_tokens") or request.stream_tokens
        async for event in self._followed_events(
            request, run_id, request.after_sequence, tokens=tokens
        ):
            yield pb.StreamRunResponse(event=event)

    async def _followed_events(
        self,
        request: pb.SendMessageRequest | pb.RespondToApprovalRequest | pb.StreamRunRequest,
        run_id: str,
        after: int,
        *,
        tokens: bool,
    ) -> AsyncIterator[run_event_pb2.RunEvent]:
        """Follows a run, with messages of ``send_message`` as text if the client requests that."""
        events = self._follower.follow(current_project(), run_id, after, tokens=tokens)
        as_text = not request.HasField("send_message_as_text") or request.send_message_as_text
        sent_text = SentText() if as_text else None
        async with aclosing(events):
            async for event in events:
                for converted in (event,) if sent_text is None else sent_text.convert(event):
                    yield converted

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        """Returns a run."""
        run_id = check_id(request.run_id, "run", field="run_id")
        run = await self._store.get(current_project(), run_id)
        return pb.GetRunResponse(run=convert.run_to_pb(run))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        """Lists runs, newest first."""
        run_filter = convert.run_filter(request)
        limit = page_limit(request.page_size, maximum=500)
        key = decode_page_token(run_filter.scope(), request.page_token, (str,))
        before = str(key[0]) if key else None
        rows = await self._store.list(current_project(), run_filter, before=before, limit=limit + 1)
        page = Page.cut(rows, limit, run_filter.scope(), lambda run: (run.id,))
        return pb.ListRunsResponse(
            runs=map(convert.run_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.CancelRunResponse:
        """Cancels a run; succeeds if it has already ended."""
        run_id = check_id(request.run_id, "run", field="run_id")
        return pb.CancelRunResponse(run=convert.run_to_pb(await self.cancel_run(run_id)))

    async def StartMemoryRun(
        self, request: pb.StartMemoryRunRequest, context: Any
    ) -> pb.StartMemoryRunResponse:
        """Queues a run of a memory agent now."""
        agent_id, conversation_id = check_id(request.agent_id, "agent", field="agent_id"), ""
        if request.conversation_id:
            conversation_id = check_id(
                request.conversation_id, "conversation", field="conversation_id"
            )
        conversation_id = conversation_id or default_conversation_id(agent_id)
        project_id = current_project()
        await self._agents.check(project_id, agent_id, conversation_id)
        mark = await self._store.start_memory_run(project_id, agent_id, conversation_id)
        if mark is None or not mark.run_open:
            return pb.StartMemoryRunResponse()
        self._dispatcher.look()
        run = await self._store.get(project_id, mark.run_id)
        return pb.StartMemoryRunResponse(run=convert.run_to_pb(run))

    async def GetMemoryStatus(
        self, request: pb.GetMemoryStatusRequest, context: Any
    ) -> pb.GetMemoryStatusResponse:
        """Returns the progress of memory agents."""
        agent_ids = convert.memory_agents_of(request)
        scope = f"memory|{' '.join(agent_ids)}"
        limit = page_limit(request.page_size, default=1000)
        key = decode_page_token(scope, request.page_token, (str, str))
        after = (str(key[0]), str(key[1])) if key else FIRST_MARK
        marks = await self._store.memory_marks(
            current_project(), agent_ids, after=after, limit=limit + 1
        )
        page = Page.cut(marks, limit, scope, lambda mark: (mark.agent_id, mark.conversation_id))
        return pb.GetMemoryStatusResponse(
            conversations=map(convert.mark_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def IngestFiles(
        self, request: pb.IngestFilesRequest, context: Any
    ) -> pb.IngestFilesResponse:
        """Starts the ingestion of the files of an agent."""
        agent_id = check_id(request.agent_id, "agent", field="agent_id")
        ingested = await self._ingestion.ingest(agent_id)
        self._dispatcher.look()
        return pb.IngestFilesResponse(
            started=map(convert.mark_to_pb, ingested.started),
            open_files=ingested.open,
            done_files=ingested.done,
            waiting_files=ingested.waiting,
            skipped_files=ingested.skipped,
        )

    async def ExplainRun(
        self, request: pb.ExplainRunRequest, context: Any
    ) -> pb.ExplainRunResponse:
        """Explains how a run spent its time, tokens and money."""
        run, explanation = await self._explain(request.run_id)
        return explanation_to_pb(run, explanation, self._prices)

    async def RecordRun(
        self, request: pb.RecordRunRequest, context: Any
    ) -> AsyncIterator[pb.RecordRunResponse]:
        """Records a finished run."""
        run_id = check_id(request.run_id, "run", field="run_id")
        run = await self._store.get(current_project(), run_id)
        async with aclosing(self._recorder.record(run)) as pieces:
            async for piece in pieces:
                yield pb.RecordRunResponse(piece=piece)

    async def ListSteps(self, request: pb.ListStepsRequest, context: Any) -> pb.ListStepsResponse:
        """Lists the steps of a run."""
        scope, limit = f"steps|{request.run_id}", page_limit(request.page_size, maximum=200)
        check_id(request.run_id, "run", field="run_id")
        key = decode_page_token(scope, request.page_token, (int,))
        after = int(str(key[0])) if key else 0
        run, explanation = await self._explain(request.run_id)
        steps = [step for step in explanation.steps if step.number > after]
        page = Page.cut(steps[: limit + 1], limit, scope, lambda step: (step.number,))
        return pb.ListStepsResponse(
            steps=(step_to_pb(run, step, self._prices) for step in page.rows),
            next_page_token=page.next_page_token,
        )

    async def _explain(self, run_id: str) -> tuple[Run, SpanBuilder]:
        """Reads the log of a run page by page, up to its last event at the time of the call."""
        project_id = current_project()
        run = await self._store.get(project_id, check_id(run_id, "run", field="run_id"))
        explanation, after = SpanBuilder(run), 0
        while after < run.last_sequence:
            page = await self._store.events(project_id, run.id, after)
            if not page.events:
                page.check_kept(after)
                break
            for stored in page.events:
                explanation.note(run_event_pb2.RunEvent.FromString(stored.payload))
            after = page.events[-1].sequence
        return run, explanation

    async def cancel_runs_of_deleted_group(self, request: bytes) -> None:
        """Cancels the open runs of a deleted group. Never raises.

        Args:
            request: The DeleteGroupRequest.
        """
        group_id = group_pb.DeleteGroupRequest.FromString(request).group_id
        try:
            await self.cancel_runs_of_deleted(group_id)
        except StrataError as error:
            # The runs end anyway, because the group is deleted.
            _log.warning(
                "runs of a deleted group not cancelled", group_id=group_id, error=repr(error)
            )

    async def cancel_runs_of_deleted(self, agent_id: str) -> None:
        """Cancels the open runs of a deleted agent or group and closes its requests for approval.

        Raises:
            StrataError: Some are left; a repeated call cancels these.
        """
        run_filter = RunFilter(agent_id, states=frozenset({RunState.QUEUED, RunState.RUNNING}))
        before: str | None = None
        while runs := await self._store.list(
            current_project(), run_filter, before=before, limit=_CANCEL_BATCH
        ):
            # The newest first, so that no waiting run starts when the one before it ends.
            for run in runs:
                await self.cancel_run(run.id)
            before = runs[-1].id
        await self._store.close_approvals(current_project(), agent_id)
        for run_id in await self._store.forget_memory_agent(current_project(), agent_id):
            await self.cancel_run(run_id)

    async def cancel_run(self, run_id: str) -> Run:
        """Cancels a run and those that it waits for; succeeds if it has already ended.

        Raises:
            NotFoundError: ``RUN_NOT_FOUND``.
        """
        return await self.cancel_run_of(current_project(), run_id)

    async def cancel_run_of(self, project_id: str, run_id: str) -> Run:
        """Cancels a run of a project; see `cancel_run`."""
        finished = convert.finished_event(run_id, StopReason.CANCELLED, Usage())
        run = await self._store.cancel(project_id, run_id, finished)
        self._dispatcher.cancel(run_id)
        if run.state is RunState.CANCELLED:
            # A run that was waiting for it may start now.
            self._dispatcher.look()
        await self._cancel_awaited(project_id, run_id)
        return run

    async def _cancel_awaited(self, project_id: str, run_id: str) -> None:
        for awaited in await self._store.awaited(project_id, run_id):
            await self.cancel_run_of(project_id, awaited)

    async def _accept(
        self, request: pb.SendMessageRequest | pb.StartRunRequest, kind: RunKind
    ) -> Accepted:
        caller = require_caller()
        of_group = request.group_id and not convert.is_asked_in_group(request, caller)
        new_run = convert.new_group_run if of_group else convert.new_run
        if caller.run_id is None:
            return await self._start(new_run(request, caller, kind))
        chain = await self._store.chain(caller.project_id, caller.run_id, self._chain_limit)
        new = new_run(request, caller, kind, chain)
        check_chain(chain, limit=self._chain_limit)
        if kind is RunKind.FOREGROUND:
            waits = await self._store.waits(caller.project_id, new.conversation_id)
            check_waits(chain[0], new.conversation_id, waits)
        return await self._start(new)

    async def _answer(self, request: pb.RespondToApprovalRequest) -> Accepted:
        approvals.check_answer(request)
        approval = await self._store.approval(current_project(), request.approval_id)
        new = approvals.answer_run(request, approval, require_caller())
        if not approval.decided:
            # An answered request is refused later, or this is a repetition of its answer.
            await self._check_tools(approval.id, approvals.approved_tools(request, approval))
        return await self._start(new)

    async def _check_tools(self, approval_id: str, approved: Mapping[str, tuple[str, str]]) -> None:
        if not approved:
            return
        versions = await self._tools.versions(name for name, _ in approved.values())
        for call_id, (name, version) in approved.items():
            if versions.get(name) != version:
                raise outdated(approval_id, call_id, name)

    async def _start(self, new: NewRun) -> Accepted:
        if is_group(new.agent_id):
            group = await self._groups.get(new.agent_id)
            check_group(group)
            return await self._dispatch(convert.with_group(new, group))
        return await self.start_run(new)

    async def start_run(self, new: NewRun) -> Accepted:
        """Accepts a run of an agent.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND`` or ``CONVERSATION_NOT_FOUND``.
            StrataError: As `RunStore.accept`.
        """
        await self._agents.check(new.principal.project_id, new.agent_id, new.conversation_id)
        return await self._dispatch(new)

    async def _dispatch(self, new: NewRun) -> Accepted:
        accepted = await self._dispatcher.accept(new)
        if accepted.interrupted_run_id is not None:
            self._dispatcher.cancel(accepted.interrupted_run_id)
            await self._cancel_awaited(new.principal.project_id, accepted.interrupted_run_id)
        return accepted
