"""Scopes that each public method needs.

Scopes of projects and of organizations have different names, so a method that needs a scope of
one kind is closed to keys of the other kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from strata.shared.scopes import OrganizationScope, Scope

_GATEWAY = "strata.api.gateway.v1"
_RUN: frozenset[str] = frozenset({Scope.RUN})
# A key that may start a run may also read its result.
_RUN_OR_READ: frozenset[str] = frozenset({Scope.RUN, Scope.READ})
_READ_OR_APPROVE: frozenset[str] = frozenset({Scope.READ, Scope.APPROVE})
_ADMIN: frozenset[str] = frozenset({Scope.ADMIN})
_SECRETS: frozenset[str] = frozenset({Scope.SECRETS})
_OF_ORGANIZATION: frozenset[str] = frozenset({OrganizationScope.ADMIN})
_READ_OF_ORGANIZATION: frozenset[str] = frozenset({OrganizationScope.READ})
_OF_INSTALLATION: frozenset[str] = frozenset({OrganizationScope.INSTALLATION})
_ANY: frozenset[str] = frozenset({*Scope, *OrganizationScope})
# These indexes contain data of all projects of all organizations.
_INDEXES = frozenset(
    {
        "strata.api.archival.v1.PassageIndexService",
        "strata.api.recall.v1.MessageIndexService",
    }
)

_EXCEPTIONS: dict[str, frozenset[str]] = {
    f"{_GATEWAY}.RunService.SendMessage": _RUN,
    f"{_GATEWAY}.RunService.StartRun": _RUN,
    f"{_GATEWAY}.RunService.CancelRun": _RUN,
    # A key that decides about tool calls need not be able to start runs.
    f"{_GATEWAY}.RunService.RespondToApproval": frozenset({Scope.RUN, Scope.APPROVE}),
    f"{_GATEWAY}.RunService.ListApprovals": _READ_OR_APPROVE,
    f"{_GATEWAY}.RunService.GetApproval": _READ_OR_APPROVE,
    f"{_GATEWAY}.RunService.StreamRun": _RUN_OR_READ,
    f"{_GATEWAY}.RunService.GetRun": _RUN_OR_READ,
    f"{_GATEWAY}.RunService.ExplainRun": _RUN_OR_READ,
    f"{_GATEWAY}.RunService.ListSteps": _RUN_OR_READ,
    # A recording contains everything that the model was shown: memory, the conversation, tools.
    f"{_GATEWAY}.RunService.RecordRun": frozenset({Scope.READ}),
    # A schedule starts runs.
    f"{_GATEWAY}.ScheduleService.CreateSchedule": _RUN,
    f"{_GATEWAY}.ScheduleService.UpdateSchedule": _RUN,
    f"{_GATEWAY}.ScheduleService.PauseSchedule": _RUN,
    f"{_GATEWAY}.ScheduleService.ResumeSchedule": _RUN,
    f"{_GATEWAY}.ScheduleService.DeleteSchedule": _RUN,
    f"{_GATEWAY}.ScheduleService.GetSchedule": _RUN_OR_READ,
    f"{_GATEWAY}.ScheduleService.ListSchedules": _RUN_OR_READ,
    f"{_GATEWAY}.ScheduleService.ListScheduleTicks": _RUN_OR_READ,
    # A webhook sends events of the project to another server; its URL may contain a secret.
    f"{_GATEWAY}.WebhookService.CreateWebhook": _ADMIN,
    f"{_GATEWAY}.WebhookService.ListWebhooks": _ADMIN,
    f"{_GATEWAY}.WebhookService.DeleteWebhook": _ADMIN,
    f"{_GATEWAY}.WebhookService.ListWebhookDeliveries": _ADMIN,
    f"{_GATEWAY}.WebhookService.RedeliverWebhook": _ADMIN,
    f"{_GATEWAY}.AdminService.WhoAmI": _ANY,
    f"{_GATEWAY}.AdminService.CreateOrganization": _OF_INSTALLATION,
    f"{_GATEWAY}.AdminService.ListOrganizations": _OF_INSTALLATION,
    f"{_GATEWAY}.AdminService.CreateOrganizationKey": _OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.ListOrganizationKeys": _READ_OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.RevokeOrganizationKey": _OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.CreateProject": _OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.ListProjects": _READ_OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.ListProjectUsage": _READ_OF_ORGANIZATION,
    # The servicer limits a project key to its own project.
    f"{_GATEWAY}.AdminService.CreateApiKey": _ADMIN | _OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.ListApiKeys": _ADMIN | _READ_OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.RevokeApiKey": _ADMIN | _OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.GetUsage": _ADMIN | _READ_OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.GetUsageSeries": _ADMIN | _READ_OF_ORGANIZATION,
    f"{_GATEWAY}.AdminService.ListAuditEvents": _ADMIN,
    f"{_GATEWAY}.AdminService.EraseSubject": _ADMIN,
    "strata.api.tool_execution.v1.ToolService.RunTool": _RUN,
    # A probe uses tokens of the provider's key.
    "strata.api.agent_loop.v1.ModelService.ProbeModel": _RUN,
    # A provider key gives access to more than the data of the project.
    "strata.api.agent_loop.v1.ModelService.PutModelKey": _ADMIN,
    # UpsertTool needs it too, for tools that are given secrets: see tool_execution.
    "strata.api.tool_execution.v1.ToolService.PutSecret": _SECRETS,
    # These calls name secrets and the server that gets them, and may start programs.
    "strata.api.tool_execution.v1.McpService.AddMcpServer": _ADMIN,
    "strata.api.tool_execution.v1.McpService.UpdateMcpServer": _ADMIN,
    # This also deletes the server's sign-in and its tools.
    "strata.api.tool_execution.v1.McpService.RemoveMcpServer": _ADMIN,
    # After a sign-in all agents of the project have the person's permissions at the server.
    "strata.api.tool_execution.v1.McpService.BeginMcpSignIn": _ADMIN,
    "strata.api.tool_execution.v1.McpService.CompleteMcpSignIn": _ADMIN,
    "strata.api.tool_execution.v1.McpService.ForgetMcpSignIn": _ADMIN,
    # An approved tool description is shown to the models of all agents.
    "strata.api.tool_execution.v1.McpService.ApproveMcpTool": _ADMIN,
    # A shorter retention deletes messages of all agents of the project.
    "strata.api.recall.v1.MessageService.SetRetention": _ADMIN,
}


def scopes_of(method: MethodDescriptor) -> frozenset[str]:
    """Returns the scopes that allow a call of the method; a key needs one of them.

    Methods that rebuild indexes need ``installation.admin``, methods declared without side effects
    need ``read``, and all others need ``write``, apart from the exceptions above.

    Raises:
        KeyError: A method of `AdminService` without an entry above: no rule fits all of them.
    """
    exception = _EXCEPTIONS.get(method.full_name)
    if exception is not None:
        return exception
    service = method.containing_service.full_name
    if service == f"{_GATEWAY}.AdminService":
        raise KeyError(f"{method.full_name} needs an entry in the table of scopes")
    if service in _INDEXES:
        return _OF_INSTALLATION
    if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS:
        return frozenset({Scope.READ})
    return frozenset({Scope.WRITE})


def policy_of(services: Iterable[ServiceDescriptor]) -> dict[str, frozenset[str]]:
    """Returns scopes by path of a method (``/package.Service/Method``); a key needs one of them."""
    return {
        f"/{service.full_name}/{method.name}": scopes_of(method)
        for service in services
        for method in service.methods
    }
