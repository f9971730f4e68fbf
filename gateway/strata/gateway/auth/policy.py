"""Which scope a method needs. Every public method is in the table; a test compares."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from strata.gateway.auth.domain import Scope

_GATEWAY = "strata.api.gateway.v1"
_RUN = frozenset({Scope.RUN})
# Whoever may start a run may also see what becomes of it.
_RUN_OR_READ = frozenset({Scope.RUN, Scope.READ})
_READ_OR_APPROVE = frozenset({Scope.READ, Scope.APPROVE})
_ANY = frozenset(Scope)
_ADMINISTRATION = frozenset(
    {
        f"{_GATEWAY}.AdminService",
        # The indexes are those of all projects.
        "strata.api.archival.v1.PassageIndexService",
        "strata.api.recall.v1.MessageIndexService",
    }
)

_EXCEPTIONS: dict[str, frozenset[Scope]] = {
    f"{_GATEWAY}.RunService.SendMessage": _RUN,
    f"{_GATEWAY}.RunService.StartRun": _RUN,
    f"{_GATEWAY}.RunService.CancelRun": _RUN,
    # Who decides about calls need not be able to make any.
    f"{_GATEWAY}.RunService.RespondToApproval": frozenset({Scope.RUN, Scope.APPROVE}),
    f"{_GATEWAY}.RunService.ListApprovals": _READ_OR_APPROVE,
    f"{_GATEWAY}.RunService.GetApproval": _READ_OR_APPROVE,
    f"{_GATEWAY}.RunService.StreamRun": _RUN_OR_READ,
    f"{_GATEWAY}.RunService.GetRun": _RUN_OR_READ,
    f"{_GATEWAY}.AdminService.WhoAmI": _ANY,
    "strata.api.tool_execution.v1.ToolService.RunTool": _RUN,
    # Secrets of a provider or of tools reach beyond the data of the project.
    "strata.api.agent_loop.v1.ModelService.PutModelKey": frozenset({Scope.ADMIN}),
    "strata.api.tool_execution.v1.ToolService.PutSecret": frozenset({Scope.ADMIN}),
    # They name secrets, send them where they say, and may start programs.
    "strata.api.tool_execution.v1.McpService.AddMcpServer": frozenset({Scope.ADMIN}),
    "strata.api.tool_execution.v1.McpService.UpdateMcpServer": frozenset({Scope.ADMIN}),
    # All agents of the project act with what a person may do there.
    "strata.api.tool_execution.v1.McpService.BeginMcpSignIn": frozenset({Scope.ADMIN}),
    "strata.api.tool_execution.v1.McpService.CompleteMcpSignIn": frozenset({Scope.ADMIN}),
    "strata.api.tool_execution.v1.McpService.ForgetMcpSignIn": frozenset({Scope.ADMIN}),
    # What is approved here reaches the models of all agents.
    "strata.api.tool_execution.v1.McpService.ApproveMcpTool": frozenset({Scope.ADMIN}),
    # It deletes what all agents of the project have said.
    "strata.api.recall.v1.MessageService.SetRetention": frozenset({Scope.ADMIN}),
}


def scopes_of(method: MethodDescriptor) -> frozenset[Scope]:
    """Returns the scopes of which a key needs one to call the method.

    Administration needs ``admin``; what has no side effects by its contract needs
    ``read``; everything else needs ``write``, apart from the exceptions above.
    """
    exception = _EXCEPTIONS.get(method.full_name)
    if exception is not None:
        return exception
    if method.containing_service.full_name in _ADMINISTRATION:
        return frozenset({Scope.ADMIN})
    if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS:
        return frozenset({Scope.READ})
    return frozenset({Scope.WRITE})


def policy_of(services: Iterable[ServiceDescriptor]) -> dict[str, frozenset[Scope]]:
    """Returns path of a method (``/package.Service/Method``) to the scopes it needs one of."""
    return {
        f"/{service.full_name}/{method.name}": scopes_of(method)
        for service in services
        for method in service.methods
    }
