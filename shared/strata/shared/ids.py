"""Prefixed ids that sort by time: ``agent-0198c1f2-7b1e-7c3a-9f00-3f6d1c2b4a59``.

The part after the prefix is a UUID version 7 (RFC 9562 §5.7): 48 bits of Unix
milliseconds, then a counter in the 12 bits of ``rand_a``, then 62 random bits.
Ids made by one process strictly increase, also within a millisecond and when
the wall clock steps back.
"""

from __future__ import annotations

import re
import secrets
import threading
import time

from strata.protocol.errors import FieldViolation, InvalidArgumentError, Reason

_REST = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_COUNTER_MAX = 0xFFF
# A fresh millisecond starts in the lower half, so that a burst has space to count up.
_SEED_BITS = 11


class _Sequence:
    """The last (millisecond, counter) pair handed out by this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millisecond = 0
        self._counter = 0

    def next(self) -> tuple[int, int]:
        now = time.time_ns() // 1_000_000
        with self._lock:
            if now > self._millisecond:
                self._millisecond = now
                self._counter = secrets.randbits(_SEED_BITS)
            elif self._counter < _COUNTER_MAX:
                self._counter += 1
            else:
                self._millisecond += 1
                self._counter = secrets.randbits(_SEED_BITS)
            return self._millisecond, self._counter


_sequence = _Sequence()


def new_uuid7() -> str:
    """Returns the text of a new UUID version 7, greater than every one made before."""
    millisecond, counter = _sequence.next()
    tail = 0x8000_0000_0000_0000 | secrets.randbits(62)
    digits = f"{millisecond:012x}{0x7000 | counter:04x}{tail:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def new_id(prefix: str) -> str:
    """Returns a new id of the given kind, for example ``new_id("agent")``."""
    return f"{prefix}-{new_uuid7()}"


def is_id(value: str, prefix: str) -> bool:
    """Returns whether `value` has the form of an id of the kind `prefix`."""
    return value.startswith(prefix) and _REST.fullmatch(value, len(prefix)) is not None


def check_id(value: str, prefix: str, *, field: str) -> str:
    """Returns `value` if it has the form of an id of the kind `prefix`.

    Any version of UUID is accepted; the store checks whether the object exists.

    Args:
        value: The id as the caller sent it.
        prefix: The kind expected, ``agent``.
        field: Path of the field in the request, for the violation.

    Raises:
        InvalidArgumentError: Malformed or of another kind (``INVALID_ID``).
    """
    if is_id(value, prefix):
        return value
    excerpt = value if len(value) <= 80 else f"{value[:77]}..."
    expected = f"{prefix}-<uuid>"
    description = f"must look like {expected}" if value else f"is required, like {expected}"
    raise InvalidArgumentError(
        f"{field} {description}, got {excerpt!r}.",
        reason=Reason.INVALID_ID,
        metadata={"id": excerpt, "expected_prefix": prefix},
        violations=[FieldViolation(field, description)],
    )


def default_conversation_id(agent_id: str) -> str:
    """Returns the id of an agent's default conversation, which is derived from the agent's id."""
    return "conversation-" + agent_id.removeprefix("agent-")
