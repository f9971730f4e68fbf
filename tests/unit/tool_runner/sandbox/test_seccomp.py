"""The seccomp filter, run by a BPF interpreter, with the tables of both architectures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.tool_runner.sandbox.program import seccomp, syscalls

ALLOW = "allow"
KILL = "kill"
EPERM, EAGAIN, EINVAL, ENOLCK, ENOSYS = 1, 11, 22, 37, 38
GRANTED = 0  # returned by the filter, with nothing done
MACHINES = list(syscalls.TABLES)
OWN = 4_242
NUMBERS = sorted({n for table in syscalls.TABLES.values() for n in table.values()})
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def run(
    program: list[seccomp.Instruction], architecture: int, number: int, arguments: list[int]
) -> str | int:
    """Runs a filter as the kernel does; the offsets are those of struct seccomp_data."""
    words = {0: number, 4: architecture}
    for index, value in enumerate(arguments):
        words[16 + 8 * index] = value & 0xFFFFFFFF
        words[20 + 8 * index] = value >> 32
    accumulator = at = 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x20:
            accumulator = words[value]
        elif code == 0x06:
            kind = value & 0xFFFF0000
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(kind) or value & 0xFFFF
        else:
            test = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[code]
            at += yes if test else no


def decide(machine: str, name: str | int, *arguments: int, own: int | None = None) -> str | int:
    number = syscalls.TABLES[machine][name] if isinstance(name, str) else name
    six = [*arguments, *[0] * (6 - len(arguments))]
    return run(seccomp.instructions(machine, own), syscalls.AUDIT_ARCH[machine], number, six)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("own", [None, OWN])
def test_the_filter_is_valid_for_the_kernel(machine: str, own: int | None) -> None:
    program = seccomp.instructions(machine, own)
    assert len(program) < 4096  # BPF_MAXINSNS
    for at, (code, yes, no, _) in enumerate(program):
        assert 0 <= yes < 256
        assert 0 <= no < 256
        if code in {0x15, 0x35, 0x45}:
            assert at + 1 + max(yes, no) < len(program)
    assert program[-1][0] == 0x06
    assert len(seccomp.assemble(program)) == 8 * len(program)


@security_examples
@pytest.mark.parametrize("machine", MACHINES)
@given(
    number=st.one_of(st.sampled_from(NUMBERS), st.integers(0, 1 << 32)),
    argument=st.integers(0, 2**64 - 1),
)
def test_only_listed_system_calls_are_allowed(machine: str, number: int, argument: int) -> None:
    number &= 0xFFFFFFFF
    action = decide(machine, number, argument, argument, argument)
    names = {n: name for name, n in syscalls.TABLES[machine].items()}
    if number >= 0x40000000:
        assert action == KILL
    elif number not in names:
        assert action == (ENOSYS if number > 450 else EPERM)
    elif names[number] in seccomp._NEVER:
        assert action == EPERM
    elif names[number] not in seccomp._rules(None):
        assert action == ALLOW


@security_examples
@pytest.mark.parametrize("machine", MACHINES)
@given(flags=st.integers(0, 2**64 - 1))
def test_clone_cannot_create_namespaces(machine: str, flags: int) -> None:
    namespaces = 0x7E020080
    if flags & namespaces:
        assert decide(machine, "clone", flags) == EPERM
    else:
        # A process, a thread with its own descriptors, and an ordinary thread.
        thread = ALLOW if flags & 0x400 else EPERM
        assert decide(machine, "clone", flags) == (thread if flags & 0x10000 else ALLOW)
        alone = decide(machine, "clone", flags, own=OWN)
        assert alone == (thread if flags & 0x10000 else EAGAIN)


@security_examples
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("own", [None, OWN])
@given(command=st.one_of(st.integers(0, 40), st.integers(1020, 1050), st.integers(0, 2**32 - 1)))
def test_only_harmless_fcntl_commands_are_allowed(
    machine: str, own: int | None, command: int
) -> None:
    harmless = {0, 1, 2, 3, 4, 5, 9, 1030, 1032, 1034}
    wanted = ALLOW if command in harmless else GRANTED if command in {6, 7} else EPERM
    assert decide(machine, "fcntl", 3, command, own=own) == wanted


@security_examples
@pytest.mark.parametrize("machine", MACHINES)
@given(flags=st.integers(0, 2**64 - 1))
def test_shared_memory_without_a_file_cannot_be_mapped(machine: str, flags: int) -> None:
    shared = flags & 0x01 and flags & 0x20
    action = decide(machine, "mmap", 0, 4096, 3, flags)
    assert action == (EPERM if shared or flags & 0x40000 else ALLOW)


@security_examples
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("network", [False, True])
@given(level=st.sampled_from([0, 1, 6]), option=st.integers(0, 80))
def test_socket_buffers_cannot_be_enlarged(
    machine: str, network: bool, level: int, option: int
) -> None:
    number = syscalls.TABLES[machine]["setsockopt"]
    program = seccomp.instructions(machine, network=network)
    action = run(program, syscalls.AUDIT_ARCH[machine], number, [3, level, option, 0, 0, 0])
    # SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE
    if level == 1 and option in {7, 8, 32, 33}:
        assert action == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_system_calls_of_another_architecture_end_the_process(machine: str) -> None:
    program = seccomp.instructions(machine)
    assert run(program, 0x40000003, syscalls.TABLES[machine]["read"], [0] * 6) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_system_calls_are_filtered_by_their_arguments(machine: str) -> None:
    assert decide(machine, "clone3") == ENOSYS
    assert decide(machine, "socketpair", 1, 1) == ALLOW
    assert decide(machine, "socketpair", 1, 1 | 0o2004000) == ALLOW
    for family, kind in ((1, 2), (1, 5), (1, 3), (2, 1), (16, 1), (1, 2 | 0o2000000)):
        assert decide(machine, "socketpair", family, kind) == EPERM
    assert decide(machine, "ioctl", 0, 0x5401) == ALLOW
    assert {decide(machine, "ioctl", 0, n) for n in (0x5412, 0x541C, 0x8901)} == {EPERM}
    assert {decide(machine, "splice"), decide(machine, "tee")} == {EINVAL}
    assert decide(machine, "flock", 3, 2) == ENOLCK
    assert {decide(machine, "setsockopt", 3, 1, n) for n in (2, 9, 20, 21)} == {ALLOW}
    assert decide(machine, "prctl", 15) == ALLOW
    assert {decide(machine, "prctl", n) for n in (4, 22, 35, 0x59616D61)} == {EPERM}
    assert decide(machine, "fchmod", 3, 0o777) == ALLOW
    assert {decide(machine, "fchmod", 3, n) for n in (0o4755, 0o2755)} == {EPERM}
    assert decide(machine, "fchmodat", 0, 0, 0o755) == ALLOW
    assert decide(machine, "fchmodat", 0, 0, 0o4000) == EPERM


@security_examples
@pytest.mark.parametrize("machine", MACHINES)
@given(pid=st.integers(0, 2**32 - 1))
def test_without_namespaces_other_processes_cannot_be_addressed(machine: str, pid: int) -> None:
    own = pid in {0, OWN}
    for name in ("kill", "prlimit64", "sched_setaffinity", "sched_setattr"):
        assert decide(machine, name, pid, own=OWN) == (ALLOW if own else EPERM)
        assert decide(machine, name, pid) == ALLOW
    assert decide(machine, "tgkill", pid, own=OWN) == (ALLOW if pid == OWN else EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_without_namespaces_file_attributes_cannot_be_changed(machine: str) -> None:
    for name in seccomp._OF_OWNERS & syscalls.TABLES[machine].keys():
        assert decide(machine, name, 0, own=OWN) == EPERM
    for name in {"fork", "vfork"} & syscalls.TABLES[machine].keys():
        assert decide(machine, name, own=OWN) == EAGAIN


@pytest.mark.parametrize("machine", MACHINES)
def test_the_system_call_tables_match_the_kernel_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    numbers = {
        {"fstatat": "newfstatat"}.get(name, name): int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    }
    table = syscalls.TABLES[machine]
    assert len(table) > 150
    assert {name: numbers.get(name) for name in table} == dict(table)


def test_a_machine_without_a_table_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64"):
        syscalls.machine()
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert syscalls.number("openat") == 56
