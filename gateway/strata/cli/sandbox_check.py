"""What ``strata doctor`` says of the sandbox: what keeps tools from the machine, by a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cli.findings import Finding, Verdict
from strata.client.tools import returned
from strata.shared.errors import PermissionDeniedError, StrataError, UnimplementedError

if TYPE_CHECKING:
    from strata.cli.client import Client

_CHECK = "sandbox"
_SOURCE = '''def doctor() -> str:
    """Says that it ran."""
    return "ran"
'''
_LESSER = (
    "Tools with hosts are refused. Allow user namespaces to unprivileged processes"
    " (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), or run the"
    " tools in a container of their own (strata-tool-runner)."
)
_NOTHING = "Tools of your own and run_code are refused; all else works."


async def served_sandbox(client: Client) -> Finding:
    """Does the server run a tool, and in what? Nothing is stored."""
    from strata.api.common.v1 import message_pb2  # noqa: PLC0415 - loads protobuf
    from strata.api.tool_execution.v1 import tool_service_pb2 as pb  # noqa: PLC0415

    try:
        ran = await client.tools.RunTool(pb.RunToolRequest(source_code=_SOURCE))
    except PermissionDeniedError:
        return Finding(_CHECK, Verdict.WARN, "not looked at: the API key may not run tools")
    except UnimplementedError as error:
        return Finding(_CHECK, Verdict.WARN, error.message, _NOTHING)
    except StrataError as error:
        return Finding(_CHECK, Verdict.FAIL, error.message, "See the log of tool_execution.")
    if ran.tool_return.status != message_pb2.TOOL_STATUS_OK:
        return Finding(_CHECK, Verdict.WARN, str(returned(ran)), _NOTHING)
    return _finding(ran.isolation, ran.isolation)


async def local_sandbox() -> Finding:
    """What would tools run in here, as this user?"""
    from strata.tool_execution.domain.sandbox import Isolation  # noqa: PLC0415 - loads the service
    from strata.tool_execution.sandbox.jail import JailSandbox  # noqa: PLC0415

    try:
        sandbox = await JailSandbox.start()
    except OSError as error:
        return Finding(_CHECK, Verdict.WARN, f"it does not start: {error}", _NOTHING)
    try:
        found = sandbox.isolation
        if found is Isolation.NONE:
            return Finding(_CHECK, Verdict.WARN, sandbox.probe.words(), _NOTHING)
        return _finding(found.label, sandbox.probe.words())
    finally:
        await sandbox.close()


def _finding(isolation: str, words: str) -> Finding:
    text = f"tools run in the isolation {words}"
    if isolation == "landlock":
        return Finding(_CHECK, Verdict.WARN, text, _LESSER)
    return Finding(_CHECK, Verdict.OK, text)
