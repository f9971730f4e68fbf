"""Routes of Azure OpenAI: its addresses and keys for OpenAI's chat completions.

Written from its documentation and from reports of users, not from Strata's client.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from doubles.http_server import HttpRequest, HttpResponse

_DEPLOYMENT = re.compile(r"/openai/deployments/([^/]+)/(chat/completions)")
_VERSIONLESS = re.compile(r"/openai/v1/(chat/completions|models|responses)")
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}(-preview)?")
_NO_RESOURCE = {"error": {"code": "404", "message": "Resource not found"}}
_DENIED = (
    "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a"
    " valid key for an active subscription."
)


def route(
    request: HttpRequest, deployments: Collection[str], keys: Collection[str]
) -> HttpRequest | HttpResponse:
    """Returns the request in the form of OpenAI, or the refusal of Azure."""
    key = request.headers.get("api-key", "")
    if not key or (keys and key not in keys) or "authorization" in request.headers:
        return HttpResponse(401, {"error": {"code": "401", "message": _DENIED}})
    versionless = _VERSIONLESS.fullmatch(request.path)
    if versionless:
        path, model = f"/v1/{versionless[1]}", (request.body or {}).get("model")
    else:
        version = request.query.get("api-version", "")
        if not version:
            return HttpResponse(404, _NO_RESOURCE)
        if not _VERSION.fullmatch(version):
            error = {"code": "BadRequest", "message": "API version not supported"}
            return HttpResponse(400, {"error": error})
        if request.path == "/openai/models":
            listed = {"id": "model-of-a-region", "object": "model", "created": 0, "owned_by": ""}
            return HttpResponse(200, {"object": "list", "data": [listed]})
        match = _DEPLOYMENT.fullmatch(request.path)
        if match is None:
            return HttpResponse(404, _NO_RESOURCE)
        path, model = f"/v1/{match[2]}", match[1]
    if model is not None and model not in deployments:
        text = (
            "The API deployment for this resource does not exist. If you created the deployment"
            " within the last 5 minutes, please wait a moment and try again."
        )
        return HttpResponse(404, {"error": {"code": "DeploymentNotFound", "message": text}})
    return replace(request, path=path, headers={**request.headers, "x-api-key": key})


FILTER_RESULTS = (
    b'data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":'
    b'[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}'
    b"}]}\n\n"
)
"""The event that Azure sends before those of OpenAI: it has no choice."""
