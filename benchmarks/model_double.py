"""A chat model with fixed replies that answers at once: `python -m benchmarks.model_double FILE`.

It is the server of `tests/doubles/model_server.py`, with its strict checks. Its replies do not
repeat the returns of tools, because they would be stored, and a later search would find them. A
request whose last message begins with "keep" is written to FILE, so that the time of the double
itself can be measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from benchmarks.peers.program import MARKING_TOOL
from doubles import memory_persona
from doubles.model_server import ModelServer
from doubles.script import ModelCall, Step, call, say


def edit_memory(request: ModelCall) -> Step:
    """Returns the reply of a memory agent: one edit of a block, then the end."""
    if request.answered:
        return call("memory_finish_edits", {})
    return call("memory_insert", {"label": "human", "new_str": "Says good morning."})


async def serve(request_file: Path) -> None:
    """Serves until it is ended."""
    server: ModelServer

    def respond(request: ModelCall) -> Step:
        # The double keeps all requests for tests; thousands of them would only take memory.
        server.requests.clear()
        if request.last_text.startswith("keep"):
            request_file.write_text(json.dumps(request.body, ensure_ascii=False))
        if "memory_finish_edits" in request.tool_names:
            return edit_memory(request)
        if MARKING_TOOL in request.tool_names and request.last_text.startswith("mark"):
            return call(MARKING_TOOL, {})
        return say("That is done.") if request.answered else memory_persona.answer(request)

    server = ModelServer(respond)
    async with server:
        print(f"URL {server.openai_url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Path(sys.argv[1])))
