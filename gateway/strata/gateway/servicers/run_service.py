"""`RunService`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.api.gateway.v1 import run_service_pb2_grpc as pb_grpc
from strata.gateway.runs import convert
from strata.gateway.runs import convert_approvals as approving
from strata.gateway.runs.approvals import outdated
from strata.gateway.runs.chains import check_chain, check_waits
from strata.gateway.runs.clients import AgentDirectory, GrpcToolVersions
from strata.gateway.runs.dispatcher import Dispatcher
from strata.gateway.runs.domain import Accepted, NewRun, Run, RunKind, RunStore, StopReason, Usage
from strata.gateway.runs.follow import RunFollower
from strata.gateway.runs.states import RunState
from strata.shared.context import current_project, require_caller
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.errors import FieldViolation, InvalidArgumentError
from strata.shared.ids import check_id

RUN_ID_HEADER = "x-run-id"
"""Initial metadata of SendMessage: the run can be named before its first event."""


class RunServicer(pb_grpc.RunServiceServicer):
    """Runs, as clients see them.

    Args:
        store: The runs.
        dispatcher: Carries them out.
        follower: Streams their events.
        agents: Knows which agents there are.
        tools: Knows which versions of tools there are.
        chain_limit: How many runs one after the other agents may start from one message.
    """

    def __init__(
        self,
        store: RunStore,
        dispatcher: Dispatcher,
        follower: RunFollower,
        agents: AgentDirectory,
        tools: GrpcToolVersions,
        *,
        chain_limit: int,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._follower = follower
        self._agents = agents
        self._tools = tools
        self._chain_limit = chain_limit

    async def SendMessage(
        self, request: pb.SendMessageRequest, context: Any
    ) -> AsyncIterator[pb.SendMessageResponse]:
        """Accepts a run and streams it; the run goes on when the client leaves."""
        accepted = await self._accept(request, RunKind.FOREGROUND)
        await context.send_initial_metadata(((RUN_ID_HEADER, accepted.run.id),))
        tokens = not request.HasField("stream_tokens") or request.stream_tokens
        async for event in self._follower.follow(
            accepted.run.project_id, accepted.run.id, 0, tokens=tokens
        ):
            yield pb.SendMessageResponse(event=event)

    async def StartRun(self, request: pb.StartRunRequest, context: Any) -> pb.StartRunResponse:
        """Accepts a run."""
        accepted = await self._accept(request, RunKind.BACKGROUND)
        return pb.StartRunResponse(run=convert.run_to_pb(accepted.run))

    async def RespondToApproval(
        self, request: pb.RespondToApprovalRequest, context: Any
    ) -> AsyncIterator[pb.RespondToApprovalResponse]:
        """Accepts the run that goes on with an answer, and streams it."""
        accepted = await self._answer(request)
        await context.send_initial_metadata(((RUN_ID_HEADER, accepted.run.id),))
        async for event in self._follower.follow(
            accepted.run.project_id, accepted.run.id, 0, tokens=True
        ):
            yield pb.RespondToApprovalResponse(event=event)

    async def ListApprovals(
        self, request: pb.ListApprovalsRequest, context: Any
    ) -> pb.ListApprovalsResponse:
        """Lists requests for approval, oldest first."""
        which = approving.approval_filter(request)
        limit = page_limit(request.page_size, maximum=100)
        key = decode_page_token(which.scope(), request.page_token, (str,))
        after = str(key[0]) if key else None
        found = await self._store.approvals(current_project(), which, after=after, limit=limit + 1)
        page = Page.cut(found, limit, which.scope(), lambda approval: (approval.id,))
        return pb.ListApprovalsResponse(
            approvals=map(approving.approval_to_pb, page.rows),
            next_page_token=page.next_page_token,
        )

    async def GetApproval(
        self, request: pb.GetApprovalRequest, context: Any
    ) -> pb.GetApprovalResponse:
        """Returns a request for approval."""
        approval_id = check_id(request.approval_id, "approval", field="approval_id")
        approval = await self._store.approval(current_project(), approval_id)
        return pb.GetApprovalResponse(approval=approving.approval_to_pb(approval))

    async def StreamRun(
        self, request: pb.StreamRunRequest, context: Any
    ) -> AsyncIterator[pb.StreamRunResponse]:
        """Streams a run from a sequence on."""
        run_id = check_id(request.run_id, "run", field="run_id")
        if request.after_sequence < 0:
            raise _wrong("after_sequence", "must not be negative")
        tokens = not request.HasField("stream_tokens") or request.stream_tokens
        async for event in self._follower.follow(
            current_project(), run_id, request.after_sequence, tokens=tokens
        ):
            yield pb.StreamRunResponse(event=event)

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        """Returns a run."""
        run_id = check_id(request.run_id, "run", field="run_id")
        run = await self._store.get(current_project(), run_id)
        return pb.GetRunResponse(run=convert.run_to_pb(run))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        """Lists runs, newest first."""
        which = convert.run_filter(request)
        limit = page_limit(request.page_size, maximum=500)
        key = decode_page_token(which.scope(), request.page_token, (str,))
        before = str(key[0]) if key else None
        found = await self._store.list(current_project(), which, before=before, limit=limit + 1)
        page = Page.cut(found, limit, which.scope(), lambda run: (run.id,))
        return pb.ListRunsResponse(
            runs=map(convert.run_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.CancelRunResponse:
        """Stops a run; success if it is over already."""
        run_id = check_id(request.run_id, "run", field="run_id")
        return pb.CancelRunResponse(run=convert.run_to_pb(await self._cancel(run_id)))

    async def _cancel(self, run_id: str) -> Run:
        project_id = current_project()
        finished = convert.finished_event(run_id, StopReason.CANCELLED, Usage())
        run = await self._store.cancel(project_id, run_id, finished)
        self._dispatcher.cancel(run_id)
        if run.state is RunState.CANCELLED:
            # A run that waited behind it may start now.
            self._dispatcher.look()
        await self._cancel_awaited(run_id)
        return run

    async def _cancel_awaited(self, run_id: str) -> None:
        for awaited in await self._store.awaited(current_project(), run_id):
            await self._cancel(awaited)

    async def _accept(
        self, request: pb.SendMessageRequest | pb.StartRunRequest, kind: RunKind
    ) -> Accepted:
        caller = require_caller()
        if caller.run_id is None:
            return await self._start(convert.new_run(request, caller, kind))
        chain = await self._store.chain(caller.project_id, caller.run_id, self._chain_limit)
        new = convert.new_run(request, caller, kind, chain)
        check_chain(chain, limit=self._chain_limit)
        if kind is RunKind.FOREGROUND:
            waits = await self._store.waits(caller.project_id, new.conversation_id)
            check_waits(chain[0], new.conversation_id, waits)
        return await self._start(new)

    async def _answer(self, request: pb.RespondToApprovalRequest) -> Accepted:
        approving.check_answer(request)
        approval = await self._store.approval(current_project(), request.approval_id)
        new = approving.answer_run(request, approval, require_caller())
        if not approval.decided:
            # What was answered before is refused, or was answered by this very request.
            await self._check_tools(approval.id, approving.approved_tools(request, approval))
        return await self._start(new)

    async def _check_tools(self, approval_id: str, approved: Mapping[str, tuple[str, str]]) -> None:
        if not approved:
            return
        versions = await self._tools.versions(name for name, _ in approved.values())
        for call_id, (name, version) in approved.items():
            if versions.get(name) != version:
                raise outdated(approval_id, call_id, name)

    async def _start(self, new: NewRun) -> Accepted:
        await self._agents.check(new.principal.project_id, new.agent_id, new.conversation_id)
        accepted = await self._store.accept(new)
        if accepted.interrupted_run_id is not None:
            self._dispatcher.cancel(accepted.interrupted_run_id)
            await self._cancel_awaited(accepted.interrupted_run_id)
        if accepted.dispatch is not None:
            self._dispatcher.start(accepted.dispatch)
        return accepted


def _wrong(field: str, description: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{field} {description}.", violations=[FieldViolation(field, description)]
    )
