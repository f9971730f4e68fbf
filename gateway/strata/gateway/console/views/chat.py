"""The chat with an agent: messages, live runs, approvals, conversations and forks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus

from starlette.responses import Response, StreamingResponse

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.recall.v1 import message_service_pb2 as message_service
from strata.gateway.console.forms import FormFields
from strata.gateway.console.live_run import RunView, server_sent_events
from strata.gateway.console.transcript import Transcript
from strata.gateway.console.views.agents import agent_of
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import FieldViolation, InvalidArgumentError, NotFoundError
from strata.protocol.images import (
    IMAGE_SUFFIXES,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    ImageError,
    image_id,
    inspect_image,
    is_image_id,
)
from strata.shared.settings import KIB

_PAGE = 40
_CONVERSATIONS = 500
# Maximum size of a form without its images.
_REST_OF_FORM_BYTES = 64 * KIB
# Each of these runs costs a call that reads all its events.
_RUNS_WITH_EDITS = 12
_OPEN_STATES = (
    run_pb.RUN_STATE_QUEUED,
    run_pb.RUN_STATE_RUNNING,
    run_pb.RUN_STATE_CANCELLING,
)


async def chat(visit: Visit) -> Response:
    """Shows a conversation with an agent, and follows its open runs."""
    agent = await agent_of(visit)
    conversation_id = visit.query("conversation") or agent.default_conversation_id
    listing, conversation, conversations, runs = await asyncio.gather(
        _newest(visit, conversation_id),
        # The list may not contain it.
        visit.services.agents.GetConversation(
            pb.GetConversationRequest(conversation_id=conversation_id)
        ),
        visit.services.agents.ListConversations(
            pb.ListConversationsRequest(agent_id=agent.id, page_size=_CONVERSATIONS)
        ),
        visit.services.runs.ListRuns(
            run_pb.ListRunsRequest(conversation_id=conversation_id, states=_OPEN_STATES)
        ),
    )
    open_runs = [run.id for run in reversed(runs.runs)]
    # The events of an open run contain its stored messages, except for its input.
    messages = [
        message
        for message in listing.messages
        if message.run_id not in open_runs or message.role == message_pb2.ROLE_USER
    ]
    return visit.page(
        "chat/page.html",
        agent=agent,
        conversation_id=conversation_id,
        conversation=conversation.conversation,
        conversations=list(reversed(conversations.conversations)),
        all_listed=not conversations.next_page_token,
        messages=list(reversed(messages)),
        transcript=await _transcript(visit, conversation_id, messages, open_runs),
        earlier=listing.next_page_token,
        open_runs=open_runs,
        image_types=list(IMAGE_SUFFIXES),
        max_images=MAX_IMAGES,
        max_image_bytes=MAX_IMAGE_BYTES,
        max_images_bytes=visit.max_form_bytes - _REST_OF_FORM_BYTES,
    )


async def earlier(visit: Visit) -> Response:
    """Shows the messages before those that are shown."""
    agent = await agent_of(visit)
    conversation_id = visit.query("conversation") or agent.default_conversation_id
    listing = await _newest(visit, conversation_id, visit.query("page"))
    return visit.page(
        "chat/earlier.html",
        agent=agent,
        conversation_id=conversation_id,
        messages=list(reversed(listing.messages)),
        transcript=await _transcript(visit, conversation_id, listing.messages, ()),
        earlier=listing.next_page_token,
    )


async def send(visit: Visit) -> Response:
    """Sends a message, and shows the run that it starts."""
    agent_id, form = visit.argument("agent_id"), visit.form
    conversation_id = form.text("conversation_id")
    text = form.text("text")
    parts = [message_pb2.Part(image=image) for image in _images_in(form)]
    if text.strip() or not parts:
        parts.insert(0, message_pb2.Part(text=message_pb2.TextPart(text=text)))
    message = message_pb2.MessageInput(parts=parts)
    started = await visit.services.runs.StartRun(
        run_pb.StartRunRequest(
            request_id=form.text("request_id"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=[message],
        )
    )
    run = started.run
    images = [image_id(file.data) for file in form.files]
    return _run_part(visit, run.id, agent_id, run.conversation_id, text=text, images=images)


def _images_in(form: FormFields) -> list[message_pb2.ImagePart]:
    """Returns the images of a form.

    Raises:
        InvalidArgumentError: Files are not images that the API accepts. The violations name the
            files; files that come from the API cannot.
    """
    violations = []
    for file in form.files:
        try:
            inspect_image(file.data)
        except ImageError as error:
            violations.append(FieldViolation(file.name, f"the image {error}"))
    if violations:
        raise InvalidArgumentError("The message was not sent.", violations=violations)
    return [message_pb2.ImagePart(data=file.data) for file in form.files]


async def live(visit: Visit) -> Response:
    """Streams what happens in a run."""
    run_id = visit.argument("run_id")
    # Check first that the run exists: its first event may come later, after the status was sent.
    await visit.services.runs.GetRun(run_pb.GetRunRequest(run_id=run_id))
    call = visit.services.runs.StreamRun(run_pb.StreamRunRequest(run_id=run_id))
    images = [name for name in visit.request.query_params.getlist("image") if is_image_id(name)]
    return StreamingResponse(
        server_sent_events(call, RunView(run_id, visit.render, images)),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


async def cancel(visit: Visit) -> Response:
    """Cancels a run."""
    request = run_pb.CancelRunRequest(run_id=visit.argument("run_id"))
    run = (await visit.services.runs.CancelRun(request)).run
    if visit.by_htmx:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return visit.go_to(_chat_path(run.agent_id, run.conversation_id))


async def answer_approval(visit: Visit) -> Response:
    """Answers a request for approval, and shows the run that continues."""
    approval_id = visit.argument("approval_id")
    call = visit.services.runs.RespondToApproval(
        run_pb.RespondToApprovalRequest(
            approval_id=approval_id, decisions=list(_decisions(visit.form))
        )
    )
    # The run continues without this stream: the page follows it by its id.
    try:
        first = await anext(aiter(call))
    finally:
        call.cancel()
    request = run_pb.GetApprovalRequest(approval_id=approval_id)
    approval = (await visit.services.runs.GetApproval(request)).approval
    return _run_part(
        visit, first.event.run_id, approval.agent_id, approval.conversation_id, answered=approval
    )


def _decisions(form: FormFields) -> Iterable[message_pb2.ApprovalDecision]:
    """Yields one decision for each call of the form.

    Raises:
        InvalidArgumentError: The form lacks a field.
    """
    answer, approved = form.text("answer"), form.texts("approved")
    if answer not in ("approve", "deny"):
        raise InvalidArgumentError("Approve or deny the calls.")
    calls, hashes, returns = (form.fields.get(name, []) for name in ("call", "hash", "return"))
    if not len(calls) == len(hashes) == len(returns):
        raise InvalidArgumentError("The form is incomplete. Load the page again.")
    for call_id, arguments_hash, client_return in zip(calls, hashes, returns, strict=True):
        decision = message_pb2.ApprovalDecision(tool_call_id=call_id, arguments_hash=arguments_hash)
        if answer == "approve" and client_return:
            decision.client_return = client_return.replace("\r\n", "\n")
        elif answer == "approve" and call_id in approved:
            decision.approve = True
        else:
            decision.reason = form.text("reason").strip()
        yield decision


async def new_conversation(visit: Visit) -> Response:
    """Starts another conversation."""
    agent_id = visit.argument("agent_id")
    created = await visit.services.agents.CreateConversation(
        pb.CreateConversationRequest(agent_id=agent_id, title=visit.form.text("title").strip())
    )
    return visit.go_to(_chat_path(agent_id, created.conversation.id))


async def fork(visit: Visit) -> Response:
    """Starts another conversation that continues from a message."""
    agent_id, form = visit.argument("agent_id"), visit.form
    forked = await visit.services.agents.ForkConversation(
        pb.ForkConversationRequest(
            conversation_id=form.text("conversation_id"), until_message_id=form.text("message_id")
        )
    )
    return visit.go_to(_chat_path(agent_id, forked.conversation.id))


async def image(visit: Visit) -> Response:
    """Shows an image of a message."""
    request = message_service.GetImageRequest(image_id=visit.argument("image_id"))
    response = await visit.services.messages.GetImage(request)
    return Response(
        response.data,
        media_type=response.media_type,
        headers={"cache-control": "private, max-age=86400, immutable"},
    )


def _chat_path(agent_id: str, conversation_id: str) -> str:
    return f"/agents/{agent_id}/chat?conversation={conversation_id}"


def _run_part(
    visit: Visit,
    run_id: str,
    agent_id: str,
    conversation_id: str,
    *,
    text: str = "",
    images: Sequence[str] = (),
    answered: run_pb.Approval | None = None,
) -> Response:
    """Returns the element that follows a run; without htmx the page with it."""
    if not visit.by_htmx:
        return visit.go_to(_chat_path(agent_id, conversation_id))
    return visit.page("chat/run.html", run_id=run_id, text=text, images=images, answered=answered)


async def _newest(
    visit: Visit, conversation_id: str, page_token: str = ""
) -> message_service.ListMessagesResponse:
    listing: message_service.ListMessagesResponse = await visit.services.messages.ListMessages(
        message_service.ListMessagesRequest(
            conversation_id=conversation_id,
            page_size=_PAGE,
            page_token=page_token,
            order=message_service.LIST_ORDER_NEWEST_FIRST,
        )
    )
    return listing


async def _transcript(
    visit: Visit,
    conversation_id: str,
    messages: Sequence[message_pb2.Message],
    open_runs: Sequence[str],
) -> Transcript:
    """Returns the transcript of messages, newest first, with memory edits and the open approval."""
    transcript = Transcript()
    transcript.add(messages)
    with_calls = dict.fromkeys(
        message.run_id
        for message in messages
        if message.run_id and any(part.HasField("tool_call") for part in message.parts)
    )
    runs = [run_id for run_id in with_calls if run_id not in open_runs][:_RUNS_WITH_EDITS]
    edits = await asyncio.gather(*(_edits_of(visit, run_id) for run_id in runs))
    for edits_of_run in edits:
        transcript.edits.update(edits_of_run)
    transcript.open_approvals = await _open_approvals(visit, conversation_id, messages)
    return transcript


async def _open_approvals(
    visit: Visit, conversation_id: str, messages: Sequence[message_pb2.Message]
) -> set[str]:
    """Returns the id of the request that the conversation waits for, if the messages have it.

    A conversation waits for its newest request, if for any. A fork has copies of the requests of
    its original, which are answered there.

    Args:
        visit: The request of the page.
        conversation_id: The conversation.
        messages: Its messages, newest first.
    """
    requests = (
        part.approval_request.approval_id
        for message in messages
        for part in message.parts
        if part.HasField("approval_request")
    )
    approval_id = next(requests, "")
    if not approval_id:
        return set()
    request = run_pb.GetApprovalRequest(approval_id=approval_id)
    try:
        approval = (await visit.services.runs.GetApproval(request)).approval
    except NotFoundError:
        return set()
    is_open = not approval.decided and approval.conversation_id == conversation_id
    return {approval_id} if is_open else set()


async def _edits_of(visit: Visit, run_id: str) -> Mapping[str, Sequence[run_event_pb2.MemoryEdit]]:
    """Returns the changes of memory that each call of a run made, by the id of the call."""
    edits: dict[str, Sequence[run_event_pb2.MemoryEdit]] = {}
    request = run_pb.StreamRunRequest(run_id=run_id, stream_tokens=False)
    try:
        async for response in visit.services.runs.StreamRun(request):
            finished = response.event.tool_finished
            if finished.memory_edits:
                edits[finished.tool_return.tool_call_id] = finished.memory_edits
    except NotFoundError:
        # The events of old runs are deleted.
        pass
    return edits


VIEWS = (
    ViewRoute("/agents/{agent_id}/chat", chat),
    ViewRoute("/agents/{agent_id}/chat/earlier", earlier),
    ViewRoute("/agents/{agent_id}/messages", send, "POST"),
    ViewRoute("/agents/{agent_id}/conversations", new_conversation, "POST"),
    ViewRoute("/agents/{agent_id}/fork", fork, "POST"),
    ViewRoute("/live/{run_id}", live),
    ViewRoute("/live/{run_id}/cancel", cancel, "POST"),
    ViewRoute("/approvals/{approval_id}", answer_approval, "POST"),
    ViewRoute("/images/{image_id}", image),
)
