"""Logs: ids on every line, no secrets on any."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from span_records import SpanRecorder, traced
from strata.shared.auth import TokenSigner, generate_key_pair
from strata.shared.context import Caller, RequestContext, use
from strata.shared.logs import (
    OWN_LOGGERS,
    REDACTED,
    TALKATIVE_LOGGERS,
    configure_logging,
    get_logger,
    redact_text,
)
from strata.shared.one_line import UNSAFE_CODES

log = get_logger("strata.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    names = ("", *OWN_LOGGERS, *TALKATIVE_LOGGERS)
    levels = {name: logging.getLogger(name).level for name in names}
    out = io.StringIO()
    configure_logging("INFO", "json", service="recall", stream=out)
    yield out
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_the_ids_of_the_call(stream: io.StringIO) -> None:
    caller = Caller("org", "project-1", "key-1", run_id="run-7")
    with use(RequestContext(caller=caller, request_id="req-1", trace_id="ab" * 16)):
        log.info("window loaded", size=3)
    (line,) = lines(stream)
    assert line["event"] == "window loaded"
    assert line["size"] == 3
    assert line["level"] == "info"
    assert line["service"] == "recall"
    assert line["logger"] == "strata.test"
    assert (line["request_id"], line["trace_id"]) == ("req-1", "ab" * 16)
    assert (line["project_id"], line["run_id"]) == ("project-1", "run-7")
    assert line["timestamp"].endswith("Z")


def test_lines_of_libraries_have_the_same_form(stream: io.StringIO) -> None:
    with use(RequestContext(request_id="req-2")):
        logging.getLogger("library").warning("took %s", "long", extra={"attempt": 2})
    (line,) = lines(stream)
    assert (line["event"], line["request_id"]) == ("took long", "req-2")
    assert (line["attempt"], line["service"]) == (2, "recall")


def test_a_line_of_a_traced_call_has_its_span(stream: io.StringIO) -> None:
    with traced(SpanRecorder()) as span:
        log.info("window loaded")
    (line,) = lines(stream)
    assert (line["trace_id"], line["span_id"]) == (span.trace_id, span.span_id)


def test_debug_lines_of_libraries_are_not_written(stream: io.StringIO) -> None:
    configure_logging("DEBUG", "json", stream=stream)
    # The SDK of a model logs its requests there, messages included.
    logging.getLogger("openai._base_client").debug("Request options: %s", {"json_data": "private"})
    logging.getLogger("httpx2").info("HTTP Request: POST https://host")
    log.debug("detail")
    logging.getLogger("openai").info("retrying")
    assert [line["event"] for line in lines(stream)] == ["detail", "retrying"]


def test_lines_below_the_level_are_not_written(stream: io.StringIO) -> None:
    log.debug("detail")
    assert stream.getvalue() == ""


TOKEN = TokenSigner(generate_key_pair()[0]).mint("o", "p", "k", ())
SECRETS = [
    TOKEN,
    "sk-proj-abcdefghijklmnop1234",
    "strata_kid12345.s3cr3ts3cr3ts3cr3ts3cr3ts3cr3t",
    "p4ssw0rd-of-the-database",
]


def test_no_secret_is_written_at_any_place_of_a_line(stream: io.StringIO) -> None:
    token, provider_key, api_key, password = SECRETS
    url = f"postgresql://strata:{password}@127.0.0.1:5432/strata"
    header = f"calling with Bearer {token}"
    log.info(header)
    log.info("call", authorization=f"Bearer {token}", nested={"headers": [{"api_key": api_key}]})
    log.info("settings", database_url=url, note=f"connecting to {url}", key=provider_key)
    log.info("object", thing=Caller("o", "p", "k", token=token), items={provider_key})
    log.warning("odd", deep=[[[[[[[[provider_key]]]]]]]])
    logging.getLogger("library").info("GET /?k=%s", provider_key)
    try:
        raise RuntimeError(f"cannot connect to {url} with {token}")
    except RuntimeError:
        log.exception("failed")
    text = stream.getvalue()
    for secret in SECRETS:
        assert secret not in text
    assert "Traceback" in text
    assert "postgresql://strata:" in text
    assert len(lines(stream)) == 7


def test_private_keys_are_redacted() -> None:
    private, public = generate_key_pair()
    assert "PRIVATE KEY" not in redact_text(f"key is {private} here")
    assert redact_text(public) == public


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens=7",
        "strata_core_memory_worker",
        "api-key-0198c1f2-7b1e-7c3a-9f00-3f6d1c2b4a59",
        "agent-0198c1f2-7b1e-7c3a-9f00-3f6d1c2b4a59",
        "see https://a.example/x:y@z",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert redact_text(text) == text


def test_counts_of_tokens_are_not_redacted(stream: io.StringIO) -> None:
    log.info("usage", prompt_tokens=12, token="x", page_token=None)
    (line,) = lines(stream)
    assert (line["prompt_tokens"], line["token"], line["page_token"]) == (12, REDACTED, None)


def test_lines_for_a_terminal_have_no_control_sequences(stream: io.StringIO) -> None:
    configure_logging("INFO", "console", stream=stream)
    logging.getLogger("library").warning("sent %s", "\x1b[2J\x9b2J\u202e\n2026-01-01 forged line")
    try:
        raise ValueError("\x1b]0;title\x07")
    except ValueError:
        log.exception("failed", reply="\x1b[2J")
    written = stream.getvalue()
    assert not set(written) & {chr(code) for code in UNSAFE_CODES}
    assert "sent \\u001b[2J\\u009b2J\\u202e\n    2026-01-01 forged line" in written
    assert "ValueError: \\u001b]0;title\\u0007" in written
