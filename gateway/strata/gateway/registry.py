"""The public services: those that the gateway implements, and those that it forwards.

This list is the border. A service that is not named here cannot be reached from
outside, even if a service serves more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.descriptor import ServiceDescriptor

from strata.api.agent_loop.v1 import (
    agent_service_pb2,
    group_service_pb2,
    model_service_pb2,
    prompt_service_pb2,
)
from strata.api.archival.v1 import (
    archive_service_pb2,
    passage_index_service_pb2,
    passage_service_pb2,
)
from strata.api.core_memory.v1 import block_service_pb2, file_service_pb2
from strata.api.gateway.v1 import (
    admin_service_pb2,
    run_follow_service_pb2,
    run_service_pb2,
    schedule_service_pb2,
    webhook_service_pb2,
)
from strata.api.recall.v1 import message_index_service_pb2, message_service_pb2
from strata.api.tool_execution.v1 import mcp_service_pb2, tool_service_pb2

RUN_FOLLOW_SERVICE: ServiceDescriptor = run_follow_service_pb2.DESCRIPTOR.services_by_name[
    "RunFollowService"
]
"""Internal: gateways follow runs for each other."""
OWN_SERVICES: Sequence[ServiceDescriptor] = (
    run_service_pb2.DESCRIPTOR.services_by_name["RunService"],
    schedule_service_pb2.DESCRIPTOR.services_by_name["ScheduleService"],
    webhook_service_pb2.DESCRIPTOR.services_by_name["WebhookService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
)

PROXIED_SERVICES: Mapping[str, Sequence[ServiceDescriptor]] = {
    "agent_loop": (
        agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"],
        group_service_pb2.DESCRIPTOR.services_by_name["GroupService"],
        model_service_pb2.DESCRIPTOR.services_by_name["ModelService"],
        prompt_service_pb2.DESCRIPTOR.services_by_name["PromptService"],
    ),
    "core_memory": (
        block_service_pb2.DESCRIPTOR.services_by_name["BlockService"],
        file_service_pb2.DESCRIPTOR.services_by_name["FileService"],
    ),
    "recall": (
        message_service_pb2.DESCRIPTOR.services_by_name["MessageService"],
        message_index_service_pb2.DESCRIPTOR.services_by_name["MessageIndexService"],
    ),
    "archival": (
        archive_service_pb2.DESCRIPTOR.services_by_name["ArchiveService"],
        passage_service_pb2.DESCRIPTOR.services_by_name["PassageService"],
        passage_index_service_pb2.DESCRIPTOR.services_by_name["PassageIndexService"],
    ),
    "tool_execution": (
        tool_service_pb2.DESCRIPTOR.services_by_name["ToolService"],
        mcp_service_pb2.DESCRIPTOR.services_by_name["McpService"],
    ),
}
"""Public gRPC services by the service that implements them (docs/architecture.md)."""


def public_services() -> Sequence[ServiceDescriptor]:
    """Returns every service that can be reached from outside."""
    return (
        *OWN_SERVICES,
        *(descriptor for some in PROXIED_SERVICES.values() for descriptor in some),
    )
