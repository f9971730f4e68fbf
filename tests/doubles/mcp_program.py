"""An MCP server without an SDK, so that it can violate the protocol: hang, misreport and exit.

    python mcp_program.py TOOLS.json

Its tools are those of the file, which is read again for every listing; the name of a tool says what
it does. Without the file the program ends.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_writing = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with _writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], **more}


def user() -> dict[str, Any]:
    home = Path.home()
    (home / "cache").write_text("x")
    status = Path("/proc/self/status").read_text()
    ids = {line.split()[0]: line.split()[1:] for line in status.splitlines() if line}
    held = {name: ids[name] for name in ("Uid:", "Gid:", "Groups:", "CapEff:")}
    return {"home": str(home), "cwd": str(Path.cwd()), "ids": held, "pid": os.getpid()}


def reach(pid: int, home: str) -> list[str]:
    """Reports what this program can do to another process and to its home folder."""
    attempts: dict[str, Callable[[], Any]] = {
        "environment": lambda: Path(f"/proc/{pid}/environ").read_bytes(),
        "memory": lambda: Path(f"/proc/{pid}/mem").open("rb").close(),
        "descriptors": lambda: list(Path(f"/proc/{pid}/fd").iterdir()),
        "signal": lambda: os.kill(pid, 0),
        "home": lambda: list(Path(home).iterdir()),
    }
    done = []
    for name, attempt in attempts.items():
        with contextlib.suppress(PermissionError):
            attempt()
            done.append(name)
    return done


def record(path: str, tag: str) -> dict[str, Any]:
    """Adds a line to a file during the call, so that a test can count effects."""
    time.sleep(0.15)
    with Path(path).open("a") as file:
        file.write(f"{tag}\n")
    time.sleep(0.15)
    return text(f"recorded {tag}")


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return text(json.dumps(user())) if name == "user" else act(name, arguments)


def act(name: str, arguments: dict[str, Any]) -> dict[str, Any]:  # noqa: C901 - a table of tools
    match name:
        case "hang":
            time.sleep(3600)
        case "mark":
            # An effect that can be counted, of a call that never returns.
            with Path(str(arguments["file"])).open("a") as file:
                file.write("done\n")
            time.sleep(3600)
        case "record":
            return record(str(arguments["file"]), str(arguments["tag"]))
        case "die":
            sys.stderr.write("out of cheese\n")
            sys.stderr.flush()
            os._exit(3)
        case "environment":
            return text(os.environ.get(str(arguments["name"]), "nothing"))
        case "reach":
            return text(json.dumps(reach(int(arguments["pid"]), str(arguments["home"]))))
        case "child":
            child = subprocess.Popen(["sleep", "3600"])
            return text(json.dumps([os.getpid(), child.pid]))
        case "flood":
            sys.stdout.write("x" * int(arguments["size"]))
            sys.stdout.flush()
            time.sleep(3600)
        case "fail":
            words = os.environ.get(str(arguments.get("name")), "no such town")
            return text("x" * int(arguments.get("before", 0)) + words, isError=True)
        case "liar":
            return {"content": "no list"}
        case "structured":
            return {"content": [], "structuredContent": {"sum": 3}}
        case "rows":
            rows = [{"id": n, "name": f"row {n}"} for n in range(int(arguments["count"]))]
            as_text = [{"type": "text", "text": json.dumps(rows)}] if arguments["text"] else []
            return {"content": as_text, "structuredContent": {"rows": rows}}
        case "mixed":
            parts = [
                {"type": "text", "text": "a picture:"},
                {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            ]
            return {"content": parts}
        case "draw":
            image = {"type": "image", "mimeType": "image/png", "data": arguments["data"]}
            return {"content": [{"type": "text", "text": "Drawn."}, image]}
        case "photograph":
            data = b"GIF89a\1\0\1\0".ljust(int(arguments["size"]), b"\0")
            encoded = base64.b64encode(data).decode()
            image = {"type": "image", "mimeType": "image/gif", "data": encoded}
            return {"content": [image] * arguments.get("count", 1)}
        case "cut":
            return text("a cut text: \ud83d")
        case "change":
            send({"method": "notifications/tools/list_changed"})
            return text("changed")
    return text(json.dumps(arguments, sort_keys=True))


def listed_tools() -> Any:
    try:
        return json.loads(Path(sys.argv[1]).read_text())
    except FileNotFoundError:
        os._exit(4)


def serve(request: dict[str, Any]) -> None:
    method, key = request.get("method"), request.get("id")
    parameters = request.get("params") or {}
    if key is None:
        return
    if method == "initialize":
        result: dict[str, Any] = {
            "protocolVersion": os.environ.get("PROTOCOL_VERSION", parameters["protocolVersion"]),
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "program", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": listed_tools()}
    elif method == "tools/call" and parameters["name"] == "raw":
        line = str(parameters["arguments"]["line"]).replace("ID", json.dumps(key))
        with _writing:
            sys.stdout.write(line.replace("DIGITS", "9" * 6000) + "\n")
            sys.stdout.flush()
        return
    elif method == "tools/call":
        result = call(parameters["name"], parameters.get("arguments") or {})
    elif method == "ping":
        result = {}
    else:
        send({"id": key, "error": {"code": -32601, "message": f"no {method}"}})
        return
    send({"id": key, "result": result})


def main() -> None:
    # Not a message: many programs write such a greeting.
    sys.stdout.write("ready when you are\n")
    sys.stdout.flush()
    for line in sys.stdin:
        threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
