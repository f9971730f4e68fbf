"""Checks of ``strata doctor`` for the sandbox of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cli.findings import CheckVerdict, DoctorFinding
from strata.client.tools import returned
from strata.protocol.errors import PermissionDeniedError, StrataError, UnimplementedError

if TYPE_CHECKING:
    from strata.cli.client import GatewayClient

_CHECK = "sandbox"
_SOURCE = '''def doctor() -> str:
    """Returns a fixed text."""
    return "ran"
'''
_WEAKER_ISOLATION = (
    "Tools with hosts are refused. Allow user namespaces to unprivileged processes"
    " (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), or run the"
    " tools in a separate container (strata-tool-runner)."
)
_TOOLS_REFUSED = "Custom tools and run_code are refused; everything else works."


async def served_sandbox(client: GatewayClient) -> DoctorFinding:
    """Runs a tool on the server and reports its isolation; nothing is stored."""
    from strata.api.common.v1 import message_pb2  # noqa: PLC0415 - loads protobuf
    from strata.api.tool_execution.v1 import tool_service_pb2 as pb  # noqa: PLC0415

    try:
        ran = await client.tools.RunTool(pb.RunToolRequest(source_code=_SOURCE))
    except PermissionDeniedError:
        return DoctorFinding(
            _CHECK, CheckVerdict.WARN, "not checked: the API key may not run tools"
        )
    except UnimplementedError as error:
        return DoctorFinding(_CHECK, CheckVerdict.WARN, error.message, _TOOLS_REFUSED)
    except StrataError as error:
        return DoctorFinding(
            _CHECK, CheckVerdict.FAIL, error.message, "See the log of tool_execution."
        )
    if ran.tool_return.status != message_pb2.TOOL_STATUS_OK:
        return DoctorFinding(_CHECK, CheckVerdict.WARN, str(returned(ran)), _TOOLS_REFUSED)
    return _finding(ran.isolation, ran.isolation)


async def local_sandbox() -> DoctorFinding:
    """Starts a sandbox here, as this user, and reports its isolation."""
    from strata.shared.sandbox import Isolation  # noqa: PLC0415 - loads the service
    from strata.tool_runner.sandbox.jail import JailSandbox  # noqa: PLC0415

    try:
        sandbox = await JailSandbox.start()
    except OSError as error:
        return DoctorFinding(
            _CHECK, CheckVerdict.WARN, f"it does not start: {error}", _TOOLS_REFUSED
        )
    try:
        isolation = sandbox.isolation
        if isolation is Isolation.NONE:
            return DoctorFinding(
                _CHECK, CheckVerdict.WARN, sandbox.probe.description(), _TOOLS_REFUSED
            )
        return _finding(isolation.label, sandbox.probe.description())
    finally:
        await sandbox.close()


def _finding(isolation: str, words: str) -> DoctorFinding:
    text = f"tools run in the isolation {words}"
    if isolation == "landlock":
        return DoctorFinding(_CHECK, CheckVerdict.WARN, text, _WEAKER_ISOLATION)
    return DoctorFinding(_CHECK, CheckVerdict.OK, text)
