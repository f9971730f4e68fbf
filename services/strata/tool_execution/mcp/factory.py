"""Creates the MCP client from the settings."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from strata.shared.clock import SystemClock
from strata.shared.settings import MIB
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.system_certificates import system_ssl_context
from strata.shared.web.url_guard import Guard
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.mcp import McpStore
from strata.tool_execution.domain.mcp_sign_in import SignInStore
from strata.tool_execution.mcp.manager import ManagerLimits, McpManager
from strata.tool_execution.mcp.program_user import open_program_users
from strata.tool_execution.mcp.sign_in import SignIns
from strata.tool_execution.mcp.transports import McpTransports
from strata.tool_execution.settings import ToolExecutionSettings

# Part of a call's time that is reserved for returning the error.
_REPORT_S = 1.0
# A session without a call is closed after this time. It holds a connection or a program.
_IDLE_S = 600.0
# Largest message of an MCP server: the largest image is 5 MiB in Base64, with some text beside it.
_MESSAGE_BYTES = 8 * MIB


async def open_mcp(
    settings: ToolExecutionSettings,
    store: McpStore,
    signed: SignInStore,
    box: SecretBox,
    stack: AsyncExitStack,
) -> tuple[McpManager, McpTransports, SignIns]:
    """Returns the manager of sessions, the transports and the sign-ins.

    The stack closes the sessions.
    """
    resolver = SystemResolver()
    stack.callback(resolver.close)
    guard = Guard(resolver, private_networks=settings.mcp_networks, ports=settings.mcp_open_ports)
    transports = McpTransports(
        programs=settings.mcp_starts_programs,
        admission=guard,
        message_bytes=_MESSAGE_BYTES,
        connect_s=settings.mcp_connect_timeout_s,
        ssl_context=system_ssl_context(),
        program_users=open_program_users(
            settings.mcp_stdio_uid, settings.mcp_stdio_uids, settings.mcp_stdio_homes, stack
        )
        if settings.mcp_starts_programs
        else None,
    )
    connect_s = settings.mcp_connect_timeout_s
    sign_ins = SignIns(store, signed, box, transports.transport, SystemClock(), connect_s)
    transports = replace(transports, sign_ins=sign_ins)
    limits = ManagerLimits(
        connect_s=settings.mcp_connect_timeout_s,
        call_s=max(settings.tool_timeout_s - _REPORT_S, settings.tool_timeout_s / 2),
        idle_s=_IDLE_S,
        connections=settings.mcp_max_connections,
    )
    manager = McpManager(store, box, transports, limits, settings.partition)
    stack.push_async_callback(manager.close)
    return manager, transports, sign_ins
