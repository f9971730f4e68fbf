"""The methods of both versions of the protocol, and the JSON of each.

Version 1.0 is the JSON of protobuf messages. Version 0.3 has other names and other JSON, which the
SDK converts. The versions differ in the names of their methods. Only version 1.0 lists tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from a2a.compat.v0_3 import conversions, types
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError
from google.protobuf import json_format
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError

from strata.gateway.http.a2a.json_rpc import RpcRequest
from strata.shared.convert.json_fields import check_fields

_PROBLEM_CHARS = 300


class A2aOperation(Enum):
    """The operation of a method."""

    SEND = auto()
    STREAM = auto()
    GET = auto()
    CANCEL = auto()
    SUBSCRIBE = auto()
    LIST = auto()
    PUSH_NOTIFICATIONS = auto()
    EXTENDED_CARD = auto()


class A2aDialect(Protocol):
    """The JSON of one version."""

    def request(self, request: RpcRequest, kind: type[Message]) -> Any:
        """Returns the parameters of a request as a message of version 1.0.

        Raises:
            InvalidParamsError: The parameters do not match the method.
        """
        ...

    def task(self, task: pb.Task) -> Any:
        """Returns a task."""
        ...

    def sent(self, task: pb.Task) -> Any:
        """Returns the task of a message that was sent."""
        ...

    def update(self, update: pb.StreamResponse) -> Any:
        """Returns an event of a stream."""
        ...


class _Current:
    """Version 1.0."""

    def request(self, request: RpcRequest, kind: type[Message]) -> Any:
        _check_names(request.params, kind)
        try:
            check_fields(request.params, kind.DESCRIPTOR)
            # A newer client may send fields that this version does not have.
            return json_format.ParseDict(request.params, kind(), ignore_unknown_fields=True)
        except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
            raise _invalid(str(error).partition("\n")[0]) from error

    def task(self, task: pb.Task) -> Any:
        return json_format.MessageToDict(task)

    def sent(self, task: pb.Task) -> Any:
        return json_format.MessageToDict(pb.SendMessageResponse(task=task))

    def update(self, update: pb.StreamResponse) -> Any:
        return json_format.MessageToDict(update)


def _check_names(params: Mapping[str, Any], kind: type[Message]) -> None:
    """Checks the names of enumerations, which the parser ignores as it ignores unknown fields.

    A filter that is ignored would list what was not asked for.

    Raises:
        InvalidParamsError: A name is not known.
    """
    for field in kind.DESCRIPTOR.fields:
        name = params.get(field.json_name)
        if field.enum_type is not None and isinstance(name, str):
            values = field.enum_type.values_by_name
            if name not in values:
                raise _invalid(f"{field.json_name} is not one of {', '.join(values)}")


class _Former:
    """Version 0.3."""

    def request(self, request: RpcRequest, kind: type[Message]) -> Any:
        model, convert = _FORMER_REQUESTS[kind.DESCRIPTOR.name]
        fields = {"id": request.id or 0, "params": request.params}
        try:
            return convert(model.model_validate(fields))
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(str(step) for step in problem["loc"])
            raise _invalid(f"{location}: {problem['msg']}") from error
        except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
            raise _invalid(str(error).partition("\n")[0]) from error

    def task(self, task: pb.Task) -> Any:
        return _shown(conversions.to_compat_task(task))

    def sent(self, task: pb.Task) -> Any:
        return self.task(task)

    def update(self, update: pb.StreamResponse) -> Any:
        result = conversions.to_compat_stream_response(update).result
        if isinstance(result, types.TaskStatusUpdateEvent):
            # The stream also ends where the task waits for input.
            waits = result.status.state is types.TaskState.input_required
            result = result.model_copy(update={"final": result.final or waits})
        return _shown(result)


_FORMER_REQUESTS: Mapping[str, tuple[type[BaseModel], Callable[[Any], Message]]] = {
    "SendMessageRequest": (
        types.SendMessageRequest,
        conversions.to_core_send_message_request,
    ),
    "GetTaskRequest": (types.GetTaskRequest, conversions.to_core_get_task_request),
    "CancelTaskRequest": (types.CancelTaskRequest, conversions.to_core_cancel_task_request),
    "SubscribeToTaskRequest": (
        types.TaskResubscriptionRequest,
        conversions.to_core_subscribe_to_task_request,
    ),
}


@dataclass(frozen=True, slots=True)
class A2aMethod:
    """A method.

    Attributes:
        operation: Its operation.
        kind: Its parameters, as version 1.0 has them.
        dialect: The JSON of its version.
    """

    operation: A2aOperation
    kind: type[Message]
    dialect: A2aDialect


_CURRENT, _FORMER = _Current(), _Former()
METHODS: Mapping[str, A2aMethod] = {
    "SendMessage": A2aMethod(A2aOperation.SEND, pb.SendMessageRequest, _CURRENT),
    "SendStreamingMessage": A2aMethod(A2aOperation.STREAM, pb.SendMessageRequest, _CURRENT),
    "GetTask": A2aMethod(A2aOperation.GET, pb.GetTaskRequest, _CURRENT),
    "ListTasks": A2aMethod(A2aOperation.LIST, pb.ListTasksRequest, _CURRENT),
    "CancelTask": A2aMethod(A2aOperation.CANCEL, pb.CancelTaskRequest, _CURRENT),
    "SubscribeToTask": A2aMethod(A2aOperation.SUBSCRIBE, pb.SubscribeToTaskRequest, _CURRENT),
    "message/send": A2aMethod(A2aOperation.SEND, pb.SendMessageRequest, _FORMER),
    "message/stream": A2aMethod(A2aOperation.STREAM, pb.SendMessageRequest, _FORMER),
    "tasks/get": A2aMethod(A2aOperation.GET, pb.GetTaskRequest, _FORMER),
    "tasks/cancel": A2aMethod(A2aOperation.CANCEL, pb.CancelTaskRequest, _FORMER),
    "tasks/resubscribe": A2aMethod(A2aOperation.SUBSCRIBE, pb.SubscribeToTaskRequest, _FORMER),
}
"""The methods that are served, by name."""

REFUSED: Mapping[str, A2aOperation] = {
    "GetExtendedAgentCard": A2aOperation.EXTENDED_CARD,
    "agent/getAuthenticatedExtendedCard": A2aOperation.EXTENDED_CARD,
    "CreateTaskPushNotificationConfig": A2aOperation.PUSH_NOTIFICATIONS,
    "GetTaskPushNotificationConfig": A2aOperation.PUSH_NOTIFICATIONS,
    "ListTaskPushNotificationConfigs": A2aOperation.PUSH_NOTIFICATIONS,
    "DeleteTaskPushNotificationConfig": A2aOperation.PUSH_NOTIFICATIONS,
    "tasks/pushNotificationConfig/set": A2aOperation.PUSH_NOTIFICATIONS,
    "tasks/pushNotificationConfig/get": A2aOperation.PUSH_NOTIFICATIONS,
    "tasks/pushNotificationConfig/list": A2aOperation.PUSH_NOTIFICATIONS,
    "tasks/pushNotificationConfig/delete": A2aOperation.PUSH_NOTIFICATIONS,
}
"""The other methods of the protocol, by name."""


def _shown(model: BaseModel) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _invalid(problem: str) -> InvalidParamsError:
    return InvalidParamsError(f"The parameters are not valid: {problem[:_PROBLEM_CHARS]}")
