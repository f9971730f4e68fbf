"""Writes one transcript per built-in prompt, made with the local demo model.

Needs a running server whose model is `local-demo` (`strata up`). From the project's root:

    .venv/bin/python tests/data/transcripts/make.py [KEY ...]

A transcript shows what was sent, and each stored message of the agent with its calls, so that a
reader sees whether a small model acts as the prompt asks. It is written again after a change of a
prompt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STRATA = Path(sys.executable).with_name("strata")
FACTS = ("Hi, my name is Ada. I play chess and I live in Oslo.", "What game do I play?")
DOCUMENT = """The Kestrel is a sailing boat of 9 metres, built in 1987.
Change the oil of her engine every 150 hours.
Her skipper is Bit; she must not be alone on board for more than two hours.
"""


def strata(*arguments: str, seconds: float = 600) -> str:
    """Runs a command and returns its output, with the error output if it fails."""
    done = subprocess.run(
        [str(STRATA), *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )
    return done.stdout if done.returncode == 0 else f"(exit code {done.returncode}) {done.stderr}"


def conversation(agent: str) -> str:
    """Returns the messages of an agent as Markdown."""
    shown = json.loads(strata("recall", "list", agent, "--calls", "-n", "100", "--json"))
    # Newest first. The system message is the prompt.
    messages = [m for m in reversed(shown["messages"]) if m["role"] != "ROLE_SYSTEM"]
    return "\n".join(line for message in messages for line in _lines(message))


def _lines(message: dict[str, Any]) -> list[str]:
    role = message["role"].removeprefix("ROLE_").lower()
    lines = []
    for part in message.get("content", message.get("parts", [])):
        if "text" in part:
            text = part["text"]["text"] if isinstance(part["text"], dict) else part["text"]
            lines += [f"**{role}**", "", *(f"    {line}" for line in text.split("\n")), ""]
        elif "toolCall" in part:
            call = part["toolCall"]
            lines += [f"**{role}** calls `{call['name']}({call.get('arguments', '')})`", ""]
        elif "toolReturn" in part:
            returned = part["toolReturn"]
            lines += [f"**{role}** `{returned.get('name', '')}` returns", ""]
            lines += [*(f"    {line}" for line in returned.get("content", "").split("\n")), ""]
        elif "reasoning" in part:
            lines += [f"**{role}** thinks", "", f"    {part['reasoning'].get('text', '')}", ""]
    return lines


def make(*options: str) -> str:
    """Creates an agent and returns its name."""
    name = f"transcript-{uuid.uuid4().hex[:8]}"
    sys.stderr.write(strata("agents", "create", name, *options))
    return name


def say(agent: str, *texts: str) -> None:
    """Sends messages, one run each."""
    for text in texts:
        sys.stderr.write(strata("chat", agent, "--max-steps", "8", "-m", text))


def chat(*options: str, texts: Sequence[str] = FACTS) -> str:
    """Returns the transcript of a chat with an agent."""
    agent = make(*options)
    say(agent, *texts)
    return conversation(agent)


def memory_agent() -> str:
    """Returns what a memory agent did after one turn, and how long it took."""
    agent = make("--sleeptime", "--human", "Nothing is known yet.")
    say(agent, FACTS[0])
    began = time.monotonic()
    while time.monotonic() - began < 240:
        block = strata("memory", "show", agent, "human")
        if "Ada" in block or "hess" in block:
            break
        time.sleep(2)
    waited = f"{time.monotonic() - began:.0f} s after the end of the turn the block was:"
    time.sleep(20)
    log = strata("memory", "log", agent)
    return "\n".join([conversation(f"{agent}-sleeptime"), waited, "", block, "", "Log:", "", log])


def voice_memory_agent() -> str:
    """Returns what the memory agent of a voice agent did."""
    options = ("--type", "voice_convo_agent", "--sleeptime", "--max-buffer", "4")
    agent = make(*options, "--min-buffer", "2")
    say(agent, *FACTS, "Thank you, bye.")
    sys.stderr.write(strata("agents", "sleep", agent))
    time.sleep(60)
    return conversation(f"{agent}-sleeptime")


def document() -> str:
    """Returns the block that was made of a document."""
    agent = make("--sleeptime")
    file = HERE / "kestrel.txt"
    file.write_text(DOCUMENT)
    folder = f"boat {uuid.uuid4().hex[:6]}"
    sys.stderr.write(strata("files", "upload", folder, str(file), "--create"))
    file.unlink()
    sys.stderr.write(strata("folders", "attach", agent, folder))
    for _ in range(60):
        shown = strata("memory", "show", agent)
        if "Kestrel" in shown:
            break
        time.sleep(4)
    return shown


def summary() -> str:
    """Returns the summary of a conversation."""
    agent = make()
    say(agent, *FACTS)
    return strata("agents", "compact", agent) + "\n" + conversation(agent)


TRANSCRIPTS: dict[str, Callable[[], str]] = {
    "sleeptime_v2": memory_agent,
    "letta_v1": chat,
    "memgpt_v2_chat": lambda: chat("--type", "memgpt_v2_agent"),
    "memgpt_chat": lambda: chat("--type", "memgpt_agent"),
    "react": lambda: chat(
        *("--type", "react_agent", "--tools", "archival_memory_insert,send_message"),
        texts=("Store in the archive that Ada plays chess. Then say that it is done.",),
    ),
    "workflow": lambda: chat(
        *("--type", "workflow_agent", "--tools", "archival_memory_insert,send_message"),
        texts=("Store in the archive that Bit sails. Then say that it is done.",),
    ),
    "voice_chat": lambda: chat("--type", "voice_convo_agent", "--sleeptime"),
    "voice_sleeptime": voice_memory_agent,
    "sleeptime_doc_ingest": document,
    "summary_system_prompt": summary,
    "memgpt_generate_tool": lambda: chat(
        *("--prompt", "memgpt_generate_tool"),
        texts=("Write a tool that returns the number of words of a text.",),
    ),
}


def main(keys: Sequence[str]) -> None:
    """Writes the transcripts of some prompts, or of all."""
    for key in keys or TRANSCRIPTS:
        text = TRANSCRIPTS[key]()
        head = f"# {key}\n\nMade on {datetime.now(UTC).date().isoformat()} with `local-demo`.\n\n"
        (HERE / f"{key}.md").write_text(head + text.rstrip() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
