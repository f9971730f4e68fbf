# ruff: noqa: E501 - sources of tools
"""Attacks on privileges: system calls, users, mounts, priorities, the clock."""

from __future__ import annotations

from integration.sandbox.attacks import all_stopped, source
from integration.sandbox.jails import Worker
from strata.shared.sandbox import Isolation
from strata.tool_runner.sandbox.program import syscalls

# From asm/unistd_64.h and asm-generic/unistd.h: calls that exploits need and tools do not.
DANGEROUS = {
    "x86_64": {
        "ptrace": 101, "syslog": 103, "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169,
        "sethostname": 170, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
        "quotactl": 179, "chroot": 161, "pivot_root": 155, "acct": 163, "settimeofday": 164,
        "adjtimex": 159, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
        "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "finit_module": 313,
        "memfd_create": 319, "kexec_load": 246, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "pidfd_getfd": 438,
        "mount_setattr": 442, "memfd_secret": 447, "shmget": 29, "msgget": 68, "semget": 64,
        "mq_open": 240, "personality": 135, "seccomp": 317, "capset": 126, "modify_ldt": 154,
        "clock_settime": 227, "mknod": 133, "setuid": 105, "vmsplice": 278, "kcmp": 312,
    },
    "aarch64": {
        "ptrace": 117, "syslog": 116, "mount": 40, "umount2": 39, "swapon": 224, "reboot": 142,
        "sethostname": 161, "init_module": 105, "delete_module": 106, "chroot": 51, "pivot_root": 41,
        "acct": 89, "settimeofday": 170, "add_key": 217, "keyctl": 219, "unshare": 97,
        "perf_event_open": 241, "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268,
        "process_vm_readv": 270, "finit_module": 273, "memfd_create": 279, "kexec_load": 104,
        "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsmount": 432, "pidfd_getfd": 438, "mount_setattr": 442, "shmget": 194,
        "personality": 92, "seccomp": 277, "capset": 91, "clock_settime": 112, "setuid": 146,
    },
}  # fmt: skip


def test_dangerous_system_calls_are_refused(jail: Worker) -> None:
    body = """
    def f(calls):
        return {name: call(number, 0, 0, 0, 0, 0, 0) for name, number in calls.items()}
    """
    calls = DANGEROUS[syscalls.machine()]
    result = jail.value(source(body), {"calls": calls})
    assert result == dict.fromkeys(calls, -1)  # EPERM


def test_new_namespaces_are_refused(jail: Worker) -> None:
    body = """
    def f(clone, clone3):
        flags = [0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
        return [call(clone, flag | 17, 0, 0, 0, 0) for flag in flags], call(clone3, 0, 0)
    """
    table = syscalls.TABLES[syscalls.machine()]
    clones, clone3 = jail.value(source(body), {"clone": table["clone"], "clone3": table["clone3"]})
    assert set(clones) == {-1}
    assert clone3 == -38  # ENOSYS: the library falls back to clone


def test_system_calls_of_other_architectures_are_refused(jail: Worker) -> None:
    """The x32 numbers are another system call table of the same kernel."""
    body = """
    def f():
        return call(0x40000000 + 39)
    """
    if syscalls.machine() == "x86_64":
        result = jail.run(source(body))
        assert result.status == "killed", result
        assert "SIGSYS" in result.detail


def test_no_capability_is_held_or_can_be_gained(jail: Worker) -> None:
    body = """
    def f(capget, capset):
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        data = (ctypes.c_uint32 * 6)()
        call(capget, header, data)
        full = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
        return {"held": list(data), "gained": call(capset, header, full),
                "privileges": LIBC.prctl(39, 0, 0, 0, 0), "filter": LIBC.prctl(21, 0, 0, 0, 0)}
    """
    table = syscalls.TABLES[syscalls.machine()]
    result = jail.value(source(body), {"capget": table["capget"], "capset": table["capset"]})
    assert result == {"held": [0] * 6, "gained": -1, "privileges": 1, "filter": 2}


def test_users_and_set_id_bits_are_refused(jail: Worker) -> None:
    body = """
    def f():
        open("program", "w").close()
        return {
            "setuid": attempt(lambda: os.setuid(0)),
            "setresuid": attempt(lambda: os.setresuid(0, 0, 0)),
            "setgroups": attempt(lambda: os.setgroups([0])),
            "set-id": attempt(lambda: os.chmod("program", 0o4755)),
            "set-id group": attempt(lambda: os.fchmod(os.open("program", os.O_RDWR), 0o2755)),
            "su": attempt(lambda: subprocess.run(["su", "-c", "id"], check=True, capture_output=True, timeout=2)),
            "mount": attempt(lambda: subprocess.run(["mount", "-t", "tmpfs", "x", "."], check=True, capture_output=True, timeout=2)),
        }
    """
    all_stopped(jail.value(source(body)))


def test_the_clock_cannot_be_set(jail: Worker) -> None:
    body = """
    def f():
        return {"clock": attempt(lambda: time.clock_settime(time.CLOCK_REALTIME, 0))}
    """
    all_stopped(jail.value(source(body)))


def test_priority_and_limits_cannot_be_raised(jail: Worker) -> None:
    body = """
    import resource
    def f():
        kinds = {n: getattr(resource, "RLIMIT_" + n) for n in ("AS", "CPU", "FSIZE", "NOFILE", "CORE", "NPROC")}
        found = {n: attempt(lambda: resource.setrlimit(k, (resource.RLIM_INFINITY,) * 2)) for n, k in kinds.items()}
        if resource.getrlimit(resource.RLIMIT_NPROC)[1] == resource.RLIM_INFINITY:
            del found["NPROC"]
        found["nice"] = attempt(lambda: os.nice(-5))
        found["priority"] = attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
        found["real time"] = attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
        found["oom"] = attempt(lambda: open("/proc/self/oom_score_adj", "w").write("-1000"))
        return found
    """
    all_stopped(jail.value(source(body)))


def test_the_process_is_in_its_own_namespaces_and_not_root(jail: Worker) -> None:
    body = """
    def f():
        return {"host": os.uname().nodename, "pid": os.getpid(), "parent": os.getppid(), "user": os.getuid()}
    """
    result = jail.value(source(body))
    if jail.level is Isolation.NAMESPACES:
        assert result == {"host": "sandbox", "pid": 1, "parent": 0, "user": 1000}
    assert result["user"] != 0
