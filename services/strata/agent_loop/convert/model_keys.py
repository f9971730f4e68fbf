"""What is checked of a key before it is stored."""

from __future__ import annotations

import re

from strata.agent_loop.convert.checks import MAX_NAME, name_violations, refuse
from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.shared.errors import FieldViolation
from strata.shared.ids import check_id

_KEY = re.compile(r"[!-~]{0,4096}")


def check_model_key(request: pb.PutModelKeyRequest) -> None:
    """Refuses what cannot be the key of an endpoint; the error never shows it.

    Raises:
        InvalidArgumentError: INVALID_FIELD or INVALID_ID, naming the field.
    """
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    found = name_violations("provider", request.provider)
    if not request.provider or "/" in request.provider:
        description = f"must be the name of an endpoint, at most {MAX_NAME} characters"
        found.append(FieldViolation("provider", description))
    # It is sent as a header: a line break in it would begin another one.
    if not _KEY.fullmatch(request.api_key):
        description = "must be at most 4096 printable ASCII characters without blanks"
        found.append(FieldViolation("api_key", description))
    refuse(found)
