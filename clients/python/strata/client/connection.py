"""Client of a gateway for Python programs: the generated stubs, and helpers on top of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from strata.api.agent_loop.v1.agent_service_pb2 import Conversation
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import tool_pb2 as tool_types
from strata.api.common.v1.response_format_pb2 import ResponseFormat
from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.api.gateway.v1 import admin_service_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.client.calls.agents import AgentReference, agent_id_of
from strata.client.calls.arguments import id_of
from strata.client.channel import CALL_S
from strata.client.client_tools import MAX_ANSWERS, ClientTools
from strata.client.generated.clients import ServiceCalls
from strata.client.images import ImageSource, user_message
from strata.client.replies import ReplyCollector
from strata.client.run_follower import BackOff, FollowedRequest, RunFollower
from strata.client.services import new_request_id, open_channel
from strata.client.settings import ClientSettings
from strata.client.source import tool_source
from strata.client.target import Choice, find_target
from strata.client.tools import Effect, arguments_json, effect_of, wrong_argument
from strata.protocol.errors import PermissionDeniedError, Reason


class Client(ServiceCalls):
    """Client of one gateway; created by `connect`.

    Every call of the gateway is a method of a service: ``client.agents.create(name="cashier")``.
    The services are the generated stubs, too: ``client.agents.CreateAgent(request)``.
    """

    async def send(
        self,
        agent_id: AgentReference,
        text: str,
        *,
        images: Sequence[ImageSource] = (),
        conversation_id: str | Conversation = "",
        max_steps: int = 0,
        request_id: str = "",
        stream_tokens: bool = True,
        send_message_as_text: bool = True,
        response_format: ResponseFormat | None = None,
        back_off: BackOff | None = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> AsyncGenerator[RunEvent, None]:
        """Sends a message, and yields each event of its run once, up to the end.

        Calls of client tools are answered with the functions in `tools`, and the events of the
        continuing run follow: the last ``run_finished`` counts. The iteration ends at a run that
        waits for anything else, and after a hundred answers.

        A broken connection is resumed after the last event; the message takes effect once. Leaving
        the iteration does not stop the run.

        Args:
            agent_id: The agent: its id, its name, or the agent as a call returned it.
            text: The text of the message.
            images: Images of the message: bytes, files, https URLs, or parts made by `image`.
            conversation_id: The conversation; empty for the agent's default one.
            max_steps: Maximum number of model calls; 0 for the server's default.
            request_id: Idempotency key; a repeated one returns the events of its first run.
            stream_tokens: Yield text as it is generated, not only whole messages. A reply in JSON
                is yielded whole, after it is validated.
            send_message_as_text: Yield messages of the tool ``send_message`` as the agent's text,
                not as calls and returns.
            response_format: Format of the reply; None for the agent's setting.
            back_off: Waits between attempts to reconnect.
            tools: Functions for client tools; see `ClientTools`. The agent needs client tools of
                these names; see `upsert_tool`.

        Raises:
            InvalidArgumentError: Two functions have the same name, a function cannot be called, or
                an image is not accepted.
            UnreachableError: The gateway could not be reached for too long.
            StrataError: The gateway refused.
        """
        message = user_message(text, images)
        request = run_pb.SendMessageRequest(
            request_id=request_id or new_request_id(),
            agent_id=await agent_id_of(self.channel, agent_id),
            conversation_id=id_of(conversation_id),
            messages=[message],
            max_steps=max_steps,
            stream_tokens=stream_tokens,
            send_message_as_text=send_message_as_text,
            response_format=response_format,
        )
        runs = self._runs_of(request, ClientTools(tools), back_off)
        async with aclosing(runs) as events:
            async for event in events:
                yield event

    async def ask(
        self,
        agent_id: AgentReference,
        text: str,
        *,
        images: Sequence[ImageSource] = (),
        conversation_id: str | Conversation = "",
        max_steps: int = 0,
        request_id: str = "",
        response_format: ResponseFormat | None = None,
        back_off: BackOff | None = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> str:
        """Sends a message, and returns the reply: the texts of the agent, joined by empty lines.

        Args:
            agent_id: The agent: its id, its name, or the agent as a call returned it.
            text: The text of the message.
            images: Images of the message, as for `send`.
            conversation_id: The conversation; empty for the agent's default one.
            max_steps: Maximum number of model calls; 0 for the server's default.
            request_id: Idempotency key; a repeated one returns the reply of its first run.
            response_format: Format of the reply; None for the agent's setting.
            back_off: Waits between attempts to reconnect.
            tools: Functions for client tools; see `ClientTools`.

        Raises:
            RunFailedError: The run failed, was cancelled, or waits for an approval.
            InvalidArgumentError: Two functions have the same name, a function cannot be called, or
                an image is not accepted.
            UnreachableError: The gateway could not be reached for too long.
            StrataError: The gateway refused.
        """
        collector = ReplyCollector()
        sent = self.send(
            agent_id,
            text,
            images=images,
            conversation_id=conversation_id,
            max_steps=max_steps,
            request_id=request_id,
            stream_tokens=False,
            response_format=response_format,
            back_off=back_off,
            tools=tools,
        )
        async with aclosing(sent) as events:
            async for event in events:
                collector.add(event)
        return collector.reply()

    async def resume(
        self,
        run_id: str | run_pb.Run,
        *,
        after_sequence: int = 0,
        stream_tokens: bool = True,
        send_message_as_text: bool = True,
        back_off: BackOff | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Yields the events of a run after a sequence, up to its end, across lost connections.

        Use it in a program that was stopped, to continue after the last event that it stored.

        Args:
            run_id: The run.
            after_sequence: The last sequence that was seen; 0 for all events.
            stream_tokens: Yield text as it is generated, not only whole messages.
            send_message_as_text: Yield messages of the tool ``send_message`` as text; see `send`.
            back_off: Waits between attempts to reconnect.

        Raises:
            UnreachableError: The gateway could not be reached for too long.
            StrataError: The gateway refused.
        """
        request = run_pb.StreamRunRequest(
            run_id=id_of(run_id),
            after_sequence=after_sequence,
            stream_tokens=stream_tokens,
            send_message_as_text=send_message_as_text,
        )
        async with aclosing(self._events_of(request, back_off)) as events:
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
        """Answers the calls of an open request, and yields events like `send` with `tools`.

        Use it for a request that an earlier program left open; the error ``APPROVAL_PENDING`` has
        its id in the metadata ``approval_id``.

        Args:
            approval_id: The request.
            tools: Functions for client tools.
            max_steps: Maximum number of model calls of each run; 0 for the server's default.
            back_off: Waits between attempts to reconnect.

        Raises:
            InvalidArgumentError: The request contains a call of another tool.
            UnreachableError: The gateway could not be reached for too long.
            StrataError: The gateway refused.
        """
        client_tools = ClientTools(tools)
        response = await self.runs.GetApproval(run_pb.GetApprovalRequest(approval_id=approval_id))
        approval_request = response.approval.request
        if not client_tools.covers(approval_request):
            names = ", ".join(sorted({call.name for call in approval_request.tool_calls}))
            raise wrong_argument("tools", f"do not include all requested functions: {names}")
        request = run_pb.RespondToApprovalRequest(
            approval_id=approval_id,
            decisions=await client_tools.decide(approval_request),
            max_steps=max_steps,
        )
        async with aclosing(self._runs_of(request, client_tools, back_off)) as events:
            async for event in events:
                yield event

    async def _runs_of(
        self, request: FollowedRequest, client_tools: ClientTools, back_off: BackOff | None
    ) -> AsyncGenerator[RunEvent, None]:
        asked_form = request.HasField("send_message_as_text")
        as_text = request.send_message_as_text if asked_form else None
        for _ in range(MAX_ANSWERS):
            approval_request: message_pb2.ApprovalRequestPart | None = None
            async with aclosing(self.follow(request, back_off)) as events:
                async for event in events:
                    if event.HasField("approval_requested"):
                        approval_request = event.approval_requested.approval
                    yield event
            if approval_request is None or not client_tools.covers(approval_request):
                return
            request = run_pb.RespondToApprovalRequest(
                approval_id=approval_request.approval_id,
                decisions=await client_tools.decide(approval_request),
                max_steps=request.max_steps,
                send_message_as_text=as_text,
            )

    async def follow(
        self,
        request: FollowedRequest,
        back_off: BackOff | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Sends a message or the answer to an approval, and yields events like `send`.

        Args:
            request: The request; a missing ``request_id`` is set.
            back_off: Waits between attempts to reconnect.

        Raises:
            UnreachableError: The gateway could not be reached for too long.
            StrataError: The gateway refused.
        """
        request.request_id = request.request_id or new_request_id()
        async with aclosing(self._events_of(request, back_off)) as events:
            async for event in events:
                yield event

    async def _events_of(
        self, request: FollowedRequest | run_pb.StreamRunRequest, back_off: BackOff | None
    ) -> AsyncGenerator[RunEvent, None]:
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
        """Stores a function as a tool, or as a new version of it; agents use it by name.

        The source of the function and of everything that it uses in its module is sent. None of it
        is run, neither here nor on the server; see `tool_source`.

        Args:
            function: A function, plain or ``async``, with annotations and a docstring.
            tags: Tags.
            pip_requirements: Packages that it needs: ``"requests>=2,<3"``.
            secret_names: Secrets that it gets as environment variables.
            allowed_hosts: Hosts that it may reach by http and https; none for no network.
            by_client: Make it a client tool, whose body is not sent; see `send`.
            requires_approval: Every call waits for a person.
            parallel: Its calls may run concurrently.
            effect: Effect of a call. A call with unknown outcome is repeated only if it is
                read-only or idempotent.
            description: Description instead of the docstring.
            return_char_limit: Maximum number of characters of a return; 0 for the server's default.

        Raises:
            ToolSourceError: The function needs something that its module does not define; the
                message has names and lines.
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
        """Runs a tool once in the sandbox, without an agent; read its return with `returned`.

        Args:
            tool: A function, which is run without packages and secrets and not stored; or the name
                of a stored tool.
            arguments: JSON values by parameter.

        Raises:
            ToolSourceError: The function needs something that its module does not define.
            StrataError: The gateway refused.
        """
        request = tool_pb.RunToolRequest(arguments_json=arguments_json(arguments))
        if isinstance(tool, str):
            response = await self.tools.GetTool(tool_pb.GetToolRequest(name=tool))
            request.tool_id = response.tool.id
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
    """Opens a connection to a gateway for the length of the block.

    Missing values are read as by the command line: from ``STRATA_ADDRESS`` and
    ``STRATA_API_KEY``, then from the Strata that runs on the data folder (``STRATA_DATA``).

    Args:
        address: ``host:port``, or ``https://host`` for TLS (default port 443).
        api_key: The key, which also determines the project.
        project: Name or id of the project that the key must belong to; empty for any.
        data: A data folder; takes precedence over the environment.
        timeout_s: Deadline of a unary call in seconds; None for none. Streams have none.
        tls: Speak TLS; else ``STRATA_TLS``. It needs an address, as `ca_file` does: the Strata of a
            data folder has no TLS.
        ca_file: PEM file of trusted certificate authorities; else ``STRATA_TLS_CA_FILE``, else the
            public ones. A client certificate is read from ``STRATA_TLS_CERTIFICATE_FILE`` and
            ``STRATA_TLS_KEY_FILE``.

    Raises:
        UnreachableError: There is no address and nothing runs on the data folder.
        UnauthenticatedError: There is no key (``CREDENTIALS_MISSING``).
        PermissionDeniedError: The key belongs to another project.
        InvalidArgumentError: The address is neither ``host:port`` nor ``https://host``, or there is
            none that uses TLS.
        FailedPreconditionError: A file of the TLS settings cannot be used.
    """
    target = find_target(
        Choice(address, api_key, data, tls, ca_file), ClientSettings.from_environment()
    )
    async with open_channel(
        target.address, target.api_key, tls=target.tls, timeout_s=timeout_s
    ) as channel:
        client = Client(channel)
        if project:
            await _check_project(client, project)
        yield client


async def _check_project(client: Client, expected: str) -> None:
    project = (await client.admin.WhoAmI(admin_service_pb2.WhoAmIRequest())).project
    if expected not in {project.id, project.name}:
        raise PermissionDeniedError(
            f"The API key belongs to the project {project.name!r}, not to {expected!r}.",
            reason=Reason.CREDENTIALS_INVALID,
            metadata={"project": project.id},
        )
