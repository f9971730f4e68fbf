"""The forwarded public services of other services, and the work of the gateway in their calls."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from strata.api.recall.v1 import message_service_pb2
from strata.gateway.registry import PROXIED_SERVICES
from strata.gateway.runs.clients import AgentDirectory
from strata.gateway.servicers.proxy import (
    AfterAnswer,
    AfterSuccess,
    Around,
    proxied_service,
)
from strata.shared.call_usage import Trailing
from strata.shared.context import require_caller
from strata.shared.partitions import not_configured
from strata.shared.service import GrpcService, Wiring

_CREATE_AGENT = "/strata.api.agent_loop.v1.AgentService/CreateAgent"
_COMPACT_CONVERSATION = "/strata.api.agent_loop.v1.AgentService/CompactConversation"
_DELETE_AGENT = "/strata.api.agent_loop.v1.AgentService/DeleteAgent"
_ATTACH_FOLDER = "/strata.api.core_memory.v1.FileService/AttachFolder"
_DELETE_GROUP = "/strata.api.agent_loop.v1.GroupService/DeleteGroup"
_LIST_MESSAGES = "/strata.api.recall.v1.MessageService/ListMessages"
_PROBE_MODEL = "/strata.api.agent_loop.v1.ModelService/ProbeModel"
_SENT_AS_TEXT = message_service_pb2.ListMessagesRequest(
    send_message_as_text=True
).SerializeToString()


@dataclass(frozen=True, slots=True)
class CallHooks:
    """The work of one partition that belongs to forwarded calls.

    Attributes:
        creating_agent: The context in which an agent is created, by the request.
        deleting_agent: The context in which an agent is deleted, by the request.
        attaching_folder: The context in which a folder is attached, by the request.
        group_deleted: Awaited with the request after a group was deleted.
        conversation_compacted: Awaited after a conversation was compacted, or could not be.
        model_probed: Awaited after a model was probed.
    """

    creating_agent: Around
    deleting_agent: Around
    attaching_folder: Around
    group_deleted: AfterSuccess
    conversation_compacted: AfterAnswer
    model_probed: AfterAnswer


class _HooksByCaller:
    """Selects the hooks of the caller's partition; the methods are as in `CallHooks`.

    Args:
        hooks: The hooks of each partition, by its name.
    """

    def __init__(self, hooks: Mapping[str, CallHooks]) -> None:
        self._hooks = hooks

    def creating_agent(self, request: bytes) -> AbstractAsyncContextManager[None]:
        return self._of_caller().creating_agent(request)

    def deleting_agent(self, request: bytes) -> AbstractAsyncContextManager[None]:
        return self._of_caller().deleting_agent(request)

    def attaching_folder(self, request: bytes) -> AbstractAsyncContextManager[None]:
        return self._of_caller().attaching_folder(request)

    async def group_deleted(self, request: bytes) -> None:
        await self._of_caller().group_deleted(request)

    async def conversation_compacted(self, request: bytes, trailing: Trailing) -> None:
        await self._of_caller().conversation_compacted(request, trailing)

    async def model_probed(self, request: bytes, trailing: Trailing) -> None:
        await self._of_caller().model_probed(request, trailing)

    def _of_caller(self) -> CallHooks:
        partition = require_caller().partition
        if partition not in self._hooks:
            raise not_configured(partition)
        return self._hooks[partition]


def forwarded_services(
    wiring: Wiring, agents: AgentDirectory, hooks: Mapping[str, CallHooks]
) -> list[GrpcService]:
    """Returns the forwarded services.

    Args:
        wiring: Has the channels to the services.
        agents: The cached agents; a deleted one is dropped.
        hooks: The work of each partition that belongs to calls, by the name of the partition.
    """
    by_caller = _HooksByCaller(hooks)
    return [
        proxied_service(
            descriptor,
            wiring.channel(service),
            after={_DELETE_AGENT: agents.forget},
            after_success={_DELETE_GROUP: by_caller.group_deleted},
            defaults={_LIST_MESSAGES: _SENT_AS_TEXT},
            around={
                _CREATE_AGENT: by_caller.creating_agent,
                _DELETE_AGENT: by_caller.deleting_agent,
                _ATTACH_FOLDER: by_caller.attaching_folder,
            },
            after_answer={
                _COMPACT_CONVERSATION: by_caller.conversation_compacted,
                _PROBE_MODEL: by_caller.model_probed,
            },
        )
        for service, descriptors in PROXIED_SERVICES.items()
        for descriptor in descriptors
    ]
