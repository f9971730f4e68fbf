"""A gateway for a Python program: the generated stubs, and the few things that take more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import tool_pb2 as tool_types
from strata.api.common.v1.response_format_pb2 import ResponseFormat
from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.api.gateway.v1 import admin_service_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.client.client_tools import MOST_ANSWERS, ClientTools
from strata.client.following import BackOff, Request, RunFollower
from strata.client.images import ImageSource, user_message
from strata.client.services import CALL_S, Services, new_request_id, open_channel
from strata.client.settings import ClientSettings
from strata.client.source import tool_source
from strata.client.target import Choice, find_target
from strata.client.tools import Effect, arguments_json, effect_of, wrong_argument
from strata.shared.errors import PermissionDeniedError, Reason


class Client(Services):
    """One gateway; made by `connect`.

    Every call that the gateway has is a method of a stub: ``client.agents.CreateAgent(...)``.
    """

    async def send(
        self,
        agent_id: str,
        text: str,
        *,
        images: Sequence[ImageSource] = (),
        conversation_id: str = "",
        max_steps: int = 0,
        request_id: str = "",
        stream_tokens: bool = True,
        response_format: ResponseFormat | None = None,
        back_off: BackOff | None = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> AsyncGenerator[RunEvent, None]:
        """Sends a message, and yields the events of its run to the end, each once.

        Calls of the client's tools are made here by the functions of `tools`, and the events of
        the run that goes on with their returns follow: the last ``run_finished`` counts. A run
        that waits for anything else ends there; so does the hundredth.

        A connection that breaks is taken up again behind the last event that arrived; the
        message counts once. Who stops listening does not stop the run.

        Args:
            agent_id: To whom.
            text: What a person says.
            images: Images beside the text: bytes, files, https URLs, or parts that `image` made.
            conversation_id: Where; empty for the agent's default conversation.
            max_steps: Most model calls; 0 for the server's default.
            request_id: Names the message; one that was sent before gives the events of its run.
            stream_tokens: Yield text as it comes, not only whole messages. A reply in JSON comes
                whole, once it is checked.
            response_format: What the reply must be; None as the agent says.
            back_off: How a lost connection is taken up again.
            tools: Functions that this program runs; see `ClientTools`. The agent needs tools of
                their names that are the client's; see `upsert_tool`.

        Raises:
            InvalidArgumentError: The functions cannot be told apart, or not be called; or an image
                is not accepted.
            UnreachableError: There was no contact for too long.
            StrataError: The gateway refused.
        """
        message = user_message(text, images)
        request = run_pb.SendMessageRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=[message],
            max_steps=max_steps,
            stream_tokens=stream_tokens,
            response_format=response_format,
        )
        runs = self._runs_of(request, ClientTools(tools), back_off)
        async with aclosing(runs) as events:
            async for event in events:
                yield event

    async def answer(
        self,
        approval_id: str,
        tools: Sequence[Callable[..., Any]],
        *,
        max_steps: int = 0,
        back_off: BackOff | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Makes the calls that a request waits for, and yields as `send` with `tools` does.

        For what an earlier program has left waiting: the metadata ``approval_id`` of the error
        ``APPROVAL_PENDING`` names it.

        Args:
            approval_id: The request.
            tools: Functions that this program runs.
            max_steps: Most model calls of each run; 0 for the server's default.
            back_off: How a lost connection is taken up again.

        Raises:
            InvalidArgumentError: The request asks for something that is none of these functions.
            UnreachableError: There was no contact for too long.
            StrataError: The gateway refused.
        """
        own = ClientTools(tools)
        found = await self.runs.GetApproval(run_pb.GetApprovalRequest(approval_id=approval_id))
        asked = found.approval.request
        if not own.cover(asked):
            names = ", ".join(sorted({call.name for call in asked.tool_calls}))
            raise wrong_argument("tools", f"do not run all that is asked for: {names}")
        request = run_pb.RespondToApprovalRequest(
            approval_id=approval_id, decisions=await own.decide(asked), max_steps=max_steps
        )
        async with aclosing(self._runs_of(request, own, back_off)) as events:
            async for event in events:
                yield event

    async def _runs_of(
        self, request: Request, own: ClientTools, back_off: BackOff | None
    ) -> AsyncGenerator[RunEvent, None]:
        for _ in range(MOST_ANSWERS):
            asked: message_pb2.ApprovalRequestPart | None = None
            async with aclosing(self.follow(request, back_off)) as events:
                async for event in events:
                    if event.HasField("approval_requested"):
                        asked = event.approval_requested.approval
                    yield event
            if asked is None or not own.cover(asked):
                return
            request = run_pb.RespondToApprovalRequest(
                approval_id=asked.approval_id,
                decisions=await own.decide(asked),
                max_steps=request.max_steps,
            )

    async def follow(
        self,
        request: Request,
        back_off: BackOff | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Sends a message or the answer to an approval, and yields as `send` does.

        Args:
            request: A missing ``request_id`` is set.
            back_off: How a lost connection is taken up again.

        Raises:
            UnreachableError: There was no contact for too long.
            StrataError: The gateway refused.
        """
        request.request_id = request.request_id or new_request_id()
        async with aclosing(RunFollower(self.runs, request, back_off).updates()) as updates:
            async for update in updates:
                if isinstance(update, RunEvent):
                    yield update

    async def upsert_tool(
        self,
        function: Callable[..., Any],
        *,
        tags: Sequence[str] = (),
        pip_requirements: Sequence[str] = (),
        secret_names: Sequence[str] = (),
        allowed_hosts: Sequence[str] = (),
        by_client: bool = False,
        requires_approval: bool = False,
        parallel: bool = False,
        effect: Effect = "",
        description: str | None = None,
        return_char_limit: int = 0,
    ) -> tool_pb.Tool:
        """Stores a function as a tool, or a new version of it; agents name it to have it.

        What is sent is text: the function and what it uses of its module. Nothing of it is run,
        here or there; see `tool_source`.

        Args:
            function: A function, plain or ``async``, with annotations and a docstring.
            tags: Tags.
            pip_requirements: Packages that it needs: ``"requests>=2,<3"``.
            secret_names: Secrets that it gets as environment variables.
            allowed_hosts: Hosts that it may reach by http and https; none for no network.
            by_client: A program of yours runs it, and nothing of its body is sent; see `send`.
            requires_approval: Every call waits for a person.
            parallel: Its calls may run at the same time.
            effect: What a call does to the world. A call whose outcome is unknown is made again
                only if that does no harm.
            description: In place of the docstring.
            return_char_limit: Most characters of a return; 0 for the server's default.

        Raises:
            ToolSourceError: The function cannot stand alone; names and lines are told.
            StrataError: The gateway refused.
        """
        request = tool_pb.UpsertToolRequest(
            request_id=new_request_id(),
            source_code=tool_source(
                function, packages=by_client or bool(pip_requirements), body=not by_client
            ),
            type=tool_types.TOOL_TYPE_CLIENT if by_client else tool_types.TOOL_TYPE_CUSTOM,
            name=function.__name__,
            description=description or "",
            tags=tags,
            return_char_limit=return_char_limit,
            default_requires_approval=requires_approval,
            enable_parallel_execution=parallel,
            effect=effect_of(effect),
            pip_requirements=pip_requirements,
            secret_names=secret_names,
            allowed_hosts=allowed_hosts,
        )
        return (await self.tools.UpsertTool(request)).tool

    async def run_tool(
        self, tool: Callable[..., Any] | str, arguments: Mapping[str, Any] | None = None
    ) -> tool_pb.RunToolResponse:
        """Runs a tool once in the sandbox, without an agent; `returned` reads what it gave.

        Args:
            tool: A function, which is tried and not stored, without packages and secrets; or
                the name of a tool that is stored.
            arguments: What JSON can hold, by parameter.

        Raises:
            ToolSourceError: The function cannot stand alone.
            StrataError: The gateway refused.
        """
        request = tool_pb.RunToolRequest(arguments_json=arguments_json(arguments))
        if isinstance(tool, str):
            found = await self.tools.GetTool(tool_pb.GetToolRequest(name=tool))
            request.tool_id = found.tool.id
        else:
            request.source_code = tool_source(tool, packages=False)
            request.function_name = tool.__name__
        return await self.tools.RunTool(request)


@asynccontextmanager
async def connect(
    address: str = "",
    *,
    api_key: str = "",
    project: str = "",
    data: Path | None = None,
    timeout_s: float | None = CALL_S,
    tls: bool = False,
    ca_file: Path | None = None,
) -> AsyncIterator[Client]:
    """Talks to a gateway while the block lasts.

    What is not given is looked for as the command line does: ``STRATA_ADDRESS`` and
    ``STRATA_API_KEY``, then the Strata that runs on the data folder (``STRATA_DATA``).

    Args:
        address: ``host:port``, or ``https://host`` to speak TLS (port 443 if none is given).
        api_key: The key; it also decides the project.
        project: Name or id of the project that the key must belong to; empty for whichever.
        data: A data folder; comes before the environment.
        timeout_s: Longest time that a unary call may take; None for no limit. Streams have none.
        tls: Speak TLS; else ``STRATA_TLS``.
        ca_file: PEM file of the authorities to trust; else ``STRATA_TLS_CA_FILE``, else the public
            ones. Our own certificate, for a gateway that asks for one, is named by
            ``STRATA_TLS_CERTIFICATE_FILE`` and ``STRATA_TLS_KEY_FILE``.

    Raises:
        UnreachableError: No address is given and nothing runs on the data folder.
        UnauthenticatedError: There is no key (``CREDENTIALS_MISSING``).
        PermissionDeniedError: The key is another project's.
        InvalidArgumentError: The address is neither ``host:port`` nor ``https://host``.
        FailedPreconditionError: A file of the TLS settings cannot be used.
    """
    target = find_target(Choice(address, api_key, data, tls, ca_file), ClientSettings())
    async with open_channel(
        target.address, target.api_key, tls=target.tls, timeout_s=timeout_s
    ) as channel:
        client = Client(channel)
        if project:
            await _check_project(client, project)
        yield client


async def _check_project(client: Client, wanted: str) -> None:
    own = (await client.admin.WhoAmI(admin_service_pb2.WhoAmIRequest())).project
    if wanted not in {own.id, own.name}:
        raise PermissionDeniedError(
            f"The API key belongs to the project {own.name!r}, not to {wanted!r}.",
            reason=Reason.CREDENTIALS_INVALID,
            metadata={"project": own.id},
        )
