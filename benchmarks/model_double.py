"""The model that answers at once: `python -m benchmarks.model_double FILE`.

It is the double of the tests, strictness included, but for one thing: it does not quote what a
tool has answered, since a search would find the quotes of earlier searches. A request whose last
message begins with "keep" is written to FILE, so that the time the double itself takes can be
measured with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from doubles import memory_persona
from doubles.model_server import ModelServer
from doubles.script import ModelCall, Step, say


async def serve(kept: Path) -> None:
    """Serves until it is ended."""
    server: ModelServer

    def respond(call: ModelCall) -> Step:
        # It remembers requests for tests; thousands of them would only take memory.
        server.requests.clear()
        if call.last_text.startswith("keep"):
            kept.write_text(json.dumps(call.body, ensure_ascii=False))
        return say("That is done.") if call.answered else memory_persona.answer(call)

    server = ModelServer(respond)
    async with server:
        print(f"URL {server.openai_url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Path(sys.argv[1])))
