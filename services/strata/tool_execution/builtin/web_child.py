"""Main function of the child processes that convert one page to text.

Standard input is the page. Standard output is one JSON object: ``title`` and ``text``, or
``refusal``, a message for the model. The environment contains no data of the service, and the
process drops its privileges before it parses the page.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Sequence

from strata.shared import confinement
from strata.shared.background_priority import lower_priority
from strata.tool_execution.builtin.web_texts import MAX_TEXT_CHARS, tidy

Read = Callable[[bytes, str], tuple[str, str]]
"""Converts the bytes of a page and the encoding that the server named to title and text."""

_MAX_TITLE_CHARS = 300


class UnreadableError(Exception):
    """The page cannot be read; the message is written for the model."""


def serve(reader: Read, arguments: Sequence[str]) -> int:
    """Converts the page on standard input; returns the exit code.

    Args:
        reader: The converter.
        arguments: Process id of the service, seconds of CPU time, bytes of address space, and the
            encoding or an empty string.
    """
    parent, cpu_seconds, memory_bytes, charset = arguments
    pipe = confinement.take_output()
    confinement.die_with(int(parent))
    lower_priority()
    confinement.limit(int(cpu_seconds), int(memory_bytes))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    confinement.forbid_effects()
    with pipe:
        pipe.write(json.dumps(_answer(reader, charset)).encode())
    return 0


def _answer(reader: Read, charset: str) -> dict[str, str]:
    try:
        title, text = reader(sys.stdin.buffer.read(), charset)
    except UnreadableError as error:
        return {"refusal": str(error)}
    except (MemoryError, RecursionError):
        return {"refusal": "The page needs too much memory to be read."}
    except Exception:  # noqa: BLE001 - converters raise anything on damaged pages
        return {"refusal": "The page is damaged, or uses features that cannot be read."}
    return {"title": tidy(title)[:_MAX_TITLE_CHARS], "text": tidy(text)[:MAX_TEXT_CHARS]}
