"""A backup of a running Strata, and another Strata from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chat_messages import text_of
from doubles.model_server import ModelServer
from doubles.script import Call, Reply, say
from live import LiveSystem
from polling import eventually
from prepared_folder import copy_prepared_folder
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import model_service_pb2 as model_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.protocol.errors import FailedPreconditionError
from strata.standalone.backup.manifest import DUMP, FOLDERS, MANIFEST
from strata.standalone.backup.restoring import restore_backup
from strata.standalone.backup.writing import write_backup
from strata.standalone.data_folder import DataFolder
from whole_system import System

REMEMBERED = "Her two dogs are called Nelly and Bruno."
# The query has no word of the passage.
QUESTION = "Which pets does the woman have?"
CALLS = (
    Call("memory_insert", {"label": "human", "new_str": "Likes rowing."}),
    Call("archival_memory_insert", {"content": REMEMBERED}),
)
MODEL_KEY = "key-of-the-project"


async def store_something(system: System) -> agent_pb.Agent:
    """Stores a message, a memory, a passage and an encrypted key of a model provider."""
    agent = await system.make_agent()
    system.model.script(Reply(calls=CALLS), say("Noted."))
    await system.send(agent, "I like rowing.")
    await system.models.PutModelKey(
        model_pb.PutModelKeyRequest(provider="openai", api_key=MODEL_KEY)
    )
    return agent


async def search(system: System, agent: agent_pb.Agent) -> list[str]:
    request = passage_pb.SearchPassagesRequest(agent_id=agent.id, query=QUESTION)
    return [hit.passage.text for hit in (await system.passages.SearchPassages(request)).hits]


async def check_restored(system: System, agent: agent_pb.Agent) -> None:
    """Asserts that everything from `store_something` is there, and no later change."""
    assert "Likes rowing." in (await system.block(agent, "human")).value
    texts = [text_of(message) for message in await system.log(agent)]
    assert "I like rowing." in texts
    assert "After the backup." not in texts
    # The vector index was rebuilt.
    assert await eventually(lambda: search(system, agent)) == [REMEMBERED]
    # The key of a provider can be decrypted.
    system.model.requests.clear()
    system.model.script(say("Still here."))
    assert (await system.send(agent, "Are you there?")).text == "Still here."
    [call] = system.model.requests
    assert call.headers["authorization"] == f"Bearer {MODEL_KEY}"


@pytest.fixture
def folder(engine_folder: Path) -> Path:
    """A folder in memory, which is removed with the session."""
    made = engine_folder / "backups"
    made.mkdir(mode=0o711)
    return made


@pytest.mark.asyncio
async def test_a_backup_of_a_running_strata_becomes_another_one(
    folder: Path, prepared_folder: Path
) -> None:
    backup, restored = folder / "backup", folder / "restored"
    copy_prepared_folder(prepared_folder, folder / "data")
    async with ModelServer() as model:
        first = LiveSystem(folder / "data", model)
        second = LiveSystem(restored, model)
        try:
            system = await first.start_system()
            agent = await store_something(system)
            written = await write_backup(DataFolder(first.data), backup)
            model.script(say("Yes."))
            await system.send(agent, "After the backup.")
            await system.channel.close()
            assert await first.stop() == 0

            assert await restore_backup(backup, restored) == written
            key = (first.data / "secrets" / "api-key").read_text()
            system = await second.start_system()
            assert system.key == key
            await check_restored(system, agent)
            await system.channel.close()
            assert await second.stop() == 0
        finally:
            await first.close()
            await second.close()

    assert written.rows["core_memory.blocks"] > 0
    check_what_is_private(backup)
    with pytest.raises(FailedPreconditionError, match="is not empty"):
        await restore_backup(backup, restored)
    with pytest.raises(FailedPreconditionError, match="exists"):
        await write_backup(DataFolder(first.data), backup)


def check_what_is_private(backup: Path) -> None:
    for path in (backup, *backup.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    for name in ("master-key", "tool-master-key", "key-pepper", "api-key"):
        assert (backup / "secrets" / name).is_file()
    # A backup contains neither the vector index nor the packages of tools.
    assert {path.name for path in backup.iterdir()} <= {DUMP, MANIFEST, *FOLDERS}
