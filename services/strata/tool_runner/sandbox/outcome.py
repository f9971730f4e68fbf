"""Determines the status of a call from the untrusted answer or the exit of its jailed process."""

from __future__ import annotations

import codecs
import json
import signal
from dataclasses import dataclass

from strata.shared.json_text import MAX_JSON_DEPTH, is_deeper
from strata.shared.sandbox import MIB, Failure, Limits, RunResult, RunStatus
from strata.tool_runner.sandbox.forkserver import Exit

_MAX_TYPE = 100
_MAX_MESSAGE = 2_000
_MAX_TRACEBACK = 4_100
# A process killed after this share of its CPU limit was killed by the kernel for it. The kernel
# counts ticks for the limit and exact times for the usage: 0.88 of one second was measured.
_CPU_SHARE = 0.75


class Refused(Exception):  # noqa: N818 - the name of the status
    """The process could not be locked and did not run the tool."""


@dataclass(frozen=True, slots=True)
class CallStatus:
    """Status of a call, with its value, failure or message."""

    status: RunStatus
    value_json: str = ""
    failure: Failure | None = None
    detail: str = ""


def size(count: int) -> str:
    """Returns a number of bytes as text with a unit."""
    return f"{count // MIB} MiB" if count >= MIB and count % MIB == 0 else f"{count:,} bytes"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _bad(why: str) -> CallStatus:
    return CallStatus(RunStatus.BAD_RESULT, detail=f"The returned value cannot be used. {why}")


def _text(value: object, most: int) -> str:
    if not isinstance(value, str):
        return ""
    return value[:most].encode("utf-8", "replace").decode()


def too_large(limits: Limits) -> CallStatus:
    """Returns the verdict for a value that is too large."""
    return CallStatus(
        RunStatus.RESULT_TOO_LARGE,
        detail=f"The returned value is larger than {size(limits.result_bytes)} as JSON.",
    )


def verdict_of(frame: bytes, limits: Limits) -> CallStatus:
    """Returns the verdict of an answer.

    Args:
        frame: JSON of the answer.
        limits: Limits of the call.
    """
    try:
        answer = json.loads(frame, parse_constant=_no_constant)
    except RecursionError:
        return _bad(f"It is nested deeper than {MAX_JSON_DEPTH} levels.")
    except ValueError as error:
        return _bad(f"It is not JSON: {_text(str(error), 200)}.")
    if not isinstance(answer, dict) or len(answer) != 1:
        return _bad("The process sent an invalid answer.")
    kind, body = next(iter(answer.items()))
    if kind == "value":
        return _value(body, limits)
    if kind == "large":
        return too_large(limits)
    if kind == "bad":
        return _bad(_text(body, 500))
    if kind == "error" and isinstance(body, dict):
        return _failure(body, limits)
    return _bad("The process sent an invalid answer.")


def _value(value: object, limits: Limits) -> CallStatus:
    if is_deeper(value):
        return _bad(f"It is nested deeper than {MAX_JSON_DEPTH} levels.")
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        encoded = text.encode()
    except UnicodeEncodeError:
        return _bad("It contains text with a lone surrogate, which is not valid.")
    except ValueError:
        return _bad("It contains a number that is not finite, or too long.")
    if len(encoded) > limits.result_bytes:
        return too_large(limits)
    return CallStatus(RunStatus.OK, value_json=text)


def _failure(body: dict[str, object], limits: Limits) -> CallStatus:
    failure = Failure(
        _text(body.get("type"), _MAX_TYPE) or "Exception",
        _text(body.get("message"), _MAX_MESSAGE),
        _text(body.get("traceback"), _MAX_TRACEBACK),
    )
    if failure.type == "MemoryError":
        return CallStatus(RunStatus.MEMORY, detail=_memory(limits), failure=failure)
    return CallStatus(RunStatus.TOOL_ERROR, failure=failure)


def _memory(limits: Limits) -> str:
    return f"A process requested more memory than {size(limits.memory_bytes)}."


def ended(end: Exit, limits: Limits) -> CallStatus:
    """Returns the verdict of a process that ended without an answer."""
    over = {
        "memory": (
            RunStatus.MEMORY,
            f"Its processes, sockets and pipes together took over {size(limits.tree_bytes)}.",
        ),
        "processes": (
            RunStatus.PROCESSES,
            f"It had more than {limits.processes} processes and threads.",
        ),
        "disk": (
            RunStatus.KILLED,
            f"Its scratch folder held more than {size(limits.disk_bytes)}.",
        ),
        "files": (RunStatus.KILLED, f"Its scratch folder held more than {limits.files} entries."),
    }.get(end.over)
    if over:
        return CallStatus(over[0], detail=over[1])
    if end.reason:
        return CallStatus(RunStatus.KILLED, detail=f"The call was lost: {end.reason}.")
    if end.code == -signal.SIGKILL and end.cpu_seconds >= limits.cpu_seconds * _CPU_SHARE:
        return CallStatus(
            RunStatus.CPU,
            detail=f"It took more than {limits.cpu_seconds} seconds of CPU time.",
        )
    if end.code < 0:
        try:
            name = signal.Signals(-end.code).name
        except ValueError:
            name = f"signal {-end.code}"
        return CallStatus(RunStatus.KILLED, detail=f"Its process was killed by {name}.")
    return CallStatus(
        RunStatus.KILLED,
        detail=f"Its process ended with exit code {end.code} before the call returned.",
    )


def decode(data: bytes) -> str:
    """Returns output as text; an incomplete character at the end is left out."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def refused(detail: str) -> RunResult:
    """Returns the result of a call that was refused."""
    return RunResult(RunStatus.REFUSED, detail=detail)
