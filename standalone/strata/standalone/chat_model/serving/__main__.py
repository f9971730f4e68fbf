"""The process of the local model.

    python -I -c 'import runpy, sys; sys.path.append(FOLDER); runpy.run_module("serving")' CONFIG

CONFIG is a JSON file: model_path, model_id, api_key, port, context_tokens, batch_tokens,
threads. It is deleted after reading, because it contains the key.

It serves on 127.0.0.1, with the key as bearer token: GET /health, GET /v1/models,
POST /v1/chat/completions (streamed or not; text, json_object and json_schema formats) and
POST /tokenize. It serves only after the model has been loaded and warmed up. One request is
computed at a time, the others wait in order. A request whose client has disconnected is dropped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .llama import LlamaEngine
from .replies import ChatService
from .web import ChatServer


def main(config_path: str) -> None:
    """Loads the model and serves it until the process is ended."""
    path = Path(config_path)
    config = json.loads(path.read_text())
    path.unlink()
    engine = LlamaEngine(
        config["model_path"],
        context_tokens=config["context_tokens"],
        batch_tokens=config["batch_tokens"],
        threads=config["threads"],
    )
    engine.warm_up()
    chat = ChatService(engine, config["model_id"])
    with ChatServer(config["port"], config["api_key"], chat) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
