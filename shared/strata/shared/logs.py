"""Structured logs: one event per line, as JSON or for a terminal.

Every line carries the request, trace, span and run id and the project of the call that
is being served. Secrets are removed: values under a key that looks secret are
replaced, and so are parts of a text that look like a credential, also in tracebacks.
Log names and sizes, not contents: messages and memory are private to the user.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, TextIO

from strata.shared.context import current
from strata.shared.one_line import escaped
from strata.shared.package_stand_in import hide

# With Rich, structlog loads a highlighter and 90 more modules, 5 MB in each process, for tracebacks
# in a form that is not used here.
with hide("rich"):
    import structlog
    from structlog.typing import EventDict, Processor

REDACTED = "[redacted]"

LogFormat = Literal["json", "console"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

_SECRET_KEY = re.compile(
    r"(^|_)(authorization|token|tokens_pem|secret|secrets|password|passwd|passphrase|pepper"
    r"|api_key|apikey|private_key|credential|credentials|cookie|dsn|database_url)$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    r"(?P<bearer>\bbearer\s+)[^\s\"',;]+"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|\b(?:sk|pk|rk|ghp|gho|xox[abps])[-_][\w.-]{16,}"
    r"|\bstrata_[\w.-]{32,}"
    r"|(?P<url>\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_MAX_DEPTH = 6
OWN_LOGGERS = ("strata",)
"""Loggers that may write below ``INFO``."""
TALKATIVE_LOGGERS = ("httpx2", "httpx", "mcp", "uvicorn.access")
"""Loggers that write a line for each request, with the address, at ``INFO``."""


def redact_text(text: str) -> str:
    """Returns the text with everything that looks like a credential replaced."""
    return _SECRET_TEXT.sub(_replacement, text)


def _replacement(match: re.Match[str]) -> str:
    prefix = match.group("bearer") or match.group("url") or ""
    return f"{prefix}{REDACTED}"


def _redact(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if depth >= _MAX_DEPTH:
        return REDACTED if isinstance(value, Mapping | list | tuple | set) else value
    if isinstance(value, Mapping):
        return {key: _redact_item(key, item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact(item, depth + 1) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact_text(repr(value))


def _redact_item(key: object, value: Any, depth: int = 0) -> Any:
    if value is not None and _SECRET_KEY.search(str(key)):
        return REDACTED
    return _redact(value, depth)


def redact_event(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Removes the secrets from an event (a structlog processor)."""
    # Keys that start with an underscore are structlog's own and never rendered.
    return {
        key: value if key.startswith("_") else _redact_item(key, value)
        for key, value in event.items()
    }


def _escape_controls(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Escapes what a terminal would execute, and indents further lines (a structlog processor).

    The console form shows texts as they are, if they have no spaces, and other values as literals.
    """
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = escaped(value)
    if isinstance(text := event.get("event"), str):
        event["event"] = text.replace("\n", "\n    ")
    return event


def add_context(_logger: Any, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """Adds the ids of the call being served to an event (a structlog processor)."""
    context = current()
    if context.request_id:
        event.setdefault("request_id", context.request_id)
    if context.trace_id:
        event.setdefault("trace_id", context.trace_id)
    if context.span is not None:
        event.setdefault("span_id", context.span.span_id)
    caller = context.caller
    if caller is not None:
        event.setdefault("project_id", caller.project_id)
        if caller.run_id:
            event.setdefault("run_id", caller.run_id)
    return event


def configure_logging(
    level: str = "INFO",
    form: LogFormat = "json",
    *,
    service: str | None = None,
    stream: TextIO | None = None,
) -> None:
    """Sends the logs of this process and its libraries to one stream.

    Args:
        level: Name of the lowest level that is written; of libraries ``INFO`` at the lowest.
        form: ``json`` for machines, ``console`` for a terminal.
        service: Added to every line of this process as ``service``.
        stream: Where to write; standard error by default.
    """

    def add_service(_logger: Any, _method: str, event: EventDict) -> EventDict:
        if service is not None:
            event.setdefault("service", service)
        return event

    renderer: Processor = (
        structlog.processors.JSONRenderer(default=repr)
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=(stream or sys.stderr).isatty(),
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_PROCESSORS, structlog.stdlib.ExtraAdder()],
            processors=[
                add_service,
                structlog.processors.format_exc_info,
                redact_event,
                *([_escape_controls] if form == "console" else []),
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level_number = logging.getLevelNamesMapping()[level.upper()]
    # At DEBUG the SDKs of models log whole requests, and drivers the values of statements.
    root.setLevel(max(level_number, logging.INFO))
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level_number)
    for name in TALKATIVE_LOGGERS:
        logging.getLogger(name).setLevel(max(level_number, logging.WARNING))
    logging.captureWarnings(True)


_PROCESSORS: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    add_context,
]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Returns a logger. Events are short fixed texts; variable parts are keywords.

    It writes to the standard library's logger of that name, so that it works without
    configuration, and tests and libraries see its records.
    """
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            *_PROCESSORS,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
