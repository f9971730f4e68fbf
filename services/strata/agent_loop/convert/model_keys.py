"""Validates model keys before they are stored."""

from __future__ import annotations

from collections.abc import Callable

from strata.agent_loop.convert.checks import MAX_NAME, name_violations, refuse
from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.protocol.errors import FieldViolation
from strata.shared.ids import check_id


def model_key(request: pb.PutModelKeyRequest, read_key: Callable[[str], str]) -> str:
    """Returns the key to store; empty to delete it. Errors never show the key.

    Args:
        request: The request.
        read_key: Validates a key of the endpoint, see `Dialect`.

    Raises:
        InvalidArgumentError: INVALID_FIELD or INVALID_ID, naming the field.
    """
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    violations = name_violations("provider", request.provider)
    if not request.provider or "/" in request.provider:
        description = f"must be the name of an endpoint, at most {MAX_NAME} characters"
        violations.append(FieldViolation("provider", description))
    key = request.api_key
    try:
        key = read_key(key) if key else ""
    except ValueError as error:
        violations.append(FieldViolation("api_key", str(error)))
    refuse(violations)
    return key
