"""What the processes that read one page have in common.

Standard input is the page, standard output one JSON object: ``title`` and ``text``, or
``refusal`` in words for the model. Nothing of the service's is in the environment, and before such
a process looks at the page it gives up what it does not need.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Sequence

from strata.shared import confinement
from strata.tool_execution.builtin.web_texts import MAX_TEXT_CHARS, tidy

Read = Callable[[bytes, str], tuple[str, str]]
"""Returns title and text of a page; takes its bytes and the encoding that the server named."""

_MAX_TITLE_CHARS = 300


class UnreadableError(Exception):
    """The page cannot be read; the text is written for the model."""


def serve(read: Read, arguments: Sequence[str]) -> int:
    """Reads standard input; returns the exit code.

    Args:
        read: How.
        arguments: Process id of the service, seconds of processor time, bytes of address space,
            and the encoding or an empty text.
    """
    parent, cpu_seconds, memory_bytes, charset = arguments
    pipe = confinement.take_output()
    confinement.die_with(int(parent))
    confinement.limit(int(cpu_seconds), int(memory_bytes))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    confinement.forbid_effects()
    with pipe:
        pipe.write(json.dumps(_answer(read, charset)).encode())
    return 0


def _answer(read: Read, charset: str) -> dict[str, str]:
    try:
        title, text = read(sys.stdin.buffer.read(), charset)
    except UnreadableError as error:
        return {"refusal": str(error)}
    except (MemoryError, RecursionError):
        return {"refusal": "The page needs too much memory to be read."}
    except Exception:  # noqa: BLE001 - whatever a converter stumbles over
        return {"refusal": "The page is damaged, or made in a way that cannot be read."}
    return {"title": tidy(title)[:_MAX_TITLE_CHARS], "text": tidy(text)[:MAX_TEXT_CHARS]}
