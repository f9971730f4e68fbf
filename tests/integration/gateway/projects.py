"""Projects and their keys, made through the API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from integration.gateway.scripted_services import Gateway
from strata.api.gateway.v1 import admin_service_pb2 as pb


async def project(gateway: Gateway, name: str, **fields: Any) -> pb.Project:
    request = pb.CreateProjectRequest(name=name, **fields)
    created = await gateway.admin.CreateProject(request, metadata=gateway.as_organization)
    return created.project


async def project_key(gateway: Gateway, project_id: str, *scopes: str) -> Gateway:
    """Creates a key of a project with the organization key; returns the gateway with that key."""
    request = pb.CreateApiKeyRequest(project_id=project_id, name="k", scopes=scopes)
    made = await gateway.admin.CreateApiKey(request, metadata=gateway.as_organization)
    return replace(gateway, api_key=made.secret)
