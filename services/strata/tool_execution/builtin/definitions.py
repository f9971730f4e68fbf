"""Every built-in tool by name."""

from __future__ import annotations

from strata.tool_execution.builtin.agent_definitions import AGENT_TOOLS
from strata.tool_execution.builtin.code_definitions import CODE_TOOLS
from strata.tool_execution.builtin.file_definitions import FILE_TOOLS
from strata.tool_execution.builtin.memory_definitions import MEMORY_TOOLS
from strata.tool_execution.builtin.search_definitions import SEARCH_TOOLS
from strata.tool_execution.builtin.web_definitions import WEB_TOOLS

BUILTIN_TOOLS = {
    tool.name: tool
    for tool in (
        *SEARCH_TOOLS,
        *MEMORY_TOOLS,
        *FILE_TOOLS,
        *WEB_TOOLS,
        *CODE_TOOLS,
        *AGENT_TOOLS,
    )
}
