"""Private members of libraries and of asyncio that Strata uses exist.

There is no public way to do the same at the same cost. A release that renames one fails here with
its name; elsewhere some of them would only be missing without an error.
"""

from __future__ import annotations

from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.subprocess import Process
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
from alembic.script import ScriptDirectory
from openai import AsyncOpenAI


@pytest.mark.parametrize(
    ("owner", "member", "used_by"),
    [
        (asyncpg.Connection, "_introspect_types", "strata.shared.db.driver_connection"),
        (AsyncOpenAI, "_make_status_error_from_response", "json_events.RepeatedRequest"),
        (BaseSubprocessTransport, "_start", "strata.shared.child_processes"),
        (BaseSubprocessTransport, "_process_exited", "strata.shared.child_processes"),
        (ScriptDirectory, "_upgrade_revs", "strata.shared.migrate.service"),
        (ScriptDirectory, "_downgrade_revs", "strata.shared.migrate.service"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_private_methods_of_libraries_exist(owner: type, member: str, used_by: str) -> None:
    assert callable(getattr(owner, member, None)), used_by


async def test_private_attributes_of_libraries_exist() -> None:
    async with AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:1") as client:
        assert hasattr(client._client, "send")
    pipes = SimpleNamespace(stdin=None, stdout=None, stderr=None)
    transport = SimpleNamespace(get_pid=lambda: 1)
    process_type: Any = Process
    assert process_type(transport, pipes, None)._transport is transport
