"""Routes of Bedrock and Vertex: their addresses, signatures and framing for Anthropic's messages.

Signatures and event streams are written from AWS's specification, not by AWS's library.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import struct
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from doubles.http_server import HttpRequest, HttpResponse

ACCESS_KEY, SECRET_KEY = "AKIA" + "TESTTESTTEST", "secret/of+tests0123456789"
REGION = "eu-central-1"
_VERSION = "2026-10-21"
_BEDROCK = re.compile(r"/model/([^/]+)/invoke-with-response-stream")
_VERTEX = re.compile(
    r"/v1/projects/acme/locations/europe-west1/publishers/anthropic/models/([^/:]+):streamRawPredict"
)
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/bedrock/aws4_request,"
    r" SignedHeaders=([^,]+), Signature=([0-9a-f]{64})"
)


def bedrock(request: HttpRequest, keys: Collection[str]) -> HttpRequest | HttpResponse:
    """Returns the request in the form of Anthropic, or the refusal of Bedrock."""
    match = _BEDROCK.fullmatch(request.path)
    if match is None:
        return _aws_error(404, "UnknownOperationException", "")
    if "x-api-key" in request.headers:
        return _aws_error(403, "AccessDeniedException", "a key was sent that is not AWS's")
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if bearer not in keys and (problem := _signature_problem(request)):
        return _aws_error(403, "InvalidSignatureException", problem)
    body = dict(request.body)
    if body.pop("anthropic_version", "") not in ("bedrock-2023-05-31", _VERSION):
        return _aws_error(400, "ValidationException", "anthropic_version: Field required")
    for name in ("model", "stream"):
        if name in body:
            text = f"{name}: Extra inputs are not permitted"
            return _aws_error(400, "ValidationException", text)
    return _as_anthropic(request, body, unquote(match[1]))


def vertex(request: HttpRequest, keys: Collection[str]) -> HttpRequest | HttpResponse:
    """Returns the request in the form of Anthropic, or the refusal of Vertex."""
    match = _VERTEX.fullmatch(request.path)
    if match is None:
        return _google_error(404, "NOT_FOUND", f"no route {request.path}")
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if bearer not in keys or "x-api-key" in request.headers:
        text = "Request had invalid authentication credentials."
        return _google_error(401, "UNAUTHENTICATED", text)
    body = dict(request.body)
    version, has_model = body.pop("anthropic_version", ""), "model" in body
    if version not in ("vertex-2023-10-16", _VERSION) or has_model:
        return _google_error(400, "INVALID_ARGUMENT", "anthropic_version or model is wrong")
    return _as_anthropic(request, body, unquote(match[1]))


def _as_anthropic(request: HttpRequest, body: dict[str, Any], model: str) -> HttpRequest:
    headers = {**request.headers, "anthropic-version": "of the body"}
    whole = {**body, "model": model, "stream": True}
    return replace(request, path="/v1/messages", headers=headers, body=whole)


def _signature_problem(request: HttpRequest) -> str:
    """Returns the problem of a signature of version 4; empty if it is valid."""
    match = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
    if match is None:
        return "Missing Authentication Token"
    access_key, date, region, names, signature = match.groups()
    if access_key != ACCESS_KEY or region != REGION:
        return "Credential should be scoped to a valid region."
    if not {"host", "x-amz-date"} <= set(names.split(";")):
        return "'Host' and 'x-amz-date' must be signed"
    canonical = "\n".join(
        [
            request.method,
            quote(request.path, safe="/~"),
            "&".join(f"{quote(k)}={quote(v)}" for k, v in sorted(request.query.items())),
            *(f"{name}:{' '.join(request.headers[name].split())}" for name in names.split(";")),
            "",
            names,
            hashlib.sha256(request.raw).hexdigest(),
        ]
    )
    scope = f"{date}/{region}/bedrock/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, hashed])
    key = f"AWS4{SECRET_KEY}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    if hmac.new(key, text.encode(), "sha256").hexdigest() != signature:
        return "The request signature we calculated does not match the signature you provided."
    return ""


def answer(response: HttpResponse) -> HttpResponse:
    """Converts an answer of Anthropic into the form of Bedrock."""
    if response.stream is None:
        error = response.body["error"]
        return _aws_error(response.status, "ValidationException", error["message"])
    headers = {"content-type": "application/vnd.amazon.eventstream"}
    return replace(response, stream=_event_stream(response.stream), headers=headers)


async def _event_stream(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        for event in filter(None, chunk.decode().split("\n\n")):
            data = event.partition("\ndata: ")[2]
            if '"type": "error"' in data:
                error = json.loads(data)["error"]
                names = {":message-type": "exception", ":exception-type": "throttlingException"}
                yield _message(names, json.dumps({"message": error["message"]}).encode())
                continue
            payload = {"bytes": base64.b64encode(data.encode()).decode()}
            names = {":message-type": "event", ":event-type": "chunk"}
            yield _message(names, json.dumps(payload).encode())


def _message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Returns one message of AWS's event stream."""
    named = b""
    for name, value in {**headers, ":content-type": "application/json"}.items():
        named += struct.pack("!B", len(name)) + name.encode()
        named += struct.pack("!BH", 7, len(value)) + value.encode()
    prelude = struct.pack("!II", 16 + len(named) + len(payload), len(named))
    prelude += struct.pack("!I", binascii.crc32(prelude))
    return prelude + named + payload + struct.pack("!I", binascii.crc32(prelude + named + payload))


def _aws_error(status: int, kind: str, message: str) -> HttpResponse:
    return HttpResponse(status, {"message": message}, {"x-amzn-errortype": kind})


def _google_error(status: int, kind: str, message: str) -> HttpResponse:
    return HttpResponse(status, {"error": {"code": status, "message": message, "status": kind}})
