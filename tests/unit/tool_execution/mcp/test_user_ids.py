"""The range of user ids for the programs of MCP servers."""

from __future__ import annotations

import pytest

from strata.protocol.errors import WrongSettingError
from strata.shared.sandbox import JAIL_UID
from strata.tool_execution.settings import ToolExecutionSettings


def test_the_user_id_of_tool_code_cannot_be_used_for_programs() -> None:
    for first, count in ((JAIL_UID, 1), (JAIL_UID - 10, 11)):
        with pytest.raises(WrongSettingError, match="the user id of code of tools"):
            ToolExecutionSettings(mcp_stdio_uid=first, mcp_stdio_uids=count)
    for first, count in ((JAIL_UID + 1, 1_000), (JAIL_UID - 10, 10)):
        ToolExecutionSettings(mcp_stdio_uid=first, mcp_stdio_uids=count)
