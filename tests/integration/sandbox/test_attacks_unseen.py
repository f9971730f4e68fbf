# ruff: noqa: E501 - sources of tools
"""A second series of attacks, written independently of the sandbox."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from integration.sandbox.attacks import all_stopped, alone, no_process_has, source
from integration.sandbox.jails import Worker
from strata.shared.sandbox import MIB, Isolation, RunStatus
from strata.tool_runner.sandbox.program import syscalls

# Calls that the first list omits. Numbers above 423 are the same on every machine.
EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_enter": 426, "io_uring_register": 427, "fsconfig": 431,
    "fspick": 433, "process_madvise": 440, "quotactl_fd": 443, "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
}  # fmt: skip
NEW = {
    "cachestat": 451, "fchmodat2": 452, "map_shadow_stack": 453, "statmount": 457,
    "listmount": 458, "lsm_set_self_attr": 460, "mseal": 462, "setxattrat": 463, "open_tree_attr": 467,
}  # fmt: skip
MORE = {
    "x86_64": {
        "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156, "nfsservctl": 180, "vserver": 236,
        "set_thread_area": 205, "lookup_dcookie": 212, "remap_file_pages": 216, "mbind": 237,
        "set_mempolicy": 238, "migrate_pages": 256, "move_pages": 279, "mq_unlink": 241,
        "mq_notify": 244, "shmat": 30, "shmctl": 31, "msgsnd": 69, "semop": 65, "ioprio_set": 251,
        "mknodat": 259, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
        "setreuid": 113, "setfsuid": 122, "setgroups": 116, "setdomainname": 171, "vhangup": 153,
        "mlockall": 151, "mlock2": 325, "pkey_alloc": 330, "fanotify_mark": 301, "clock_adjtime": 305,
        "process_vm_writev": 311, "kexec_file_load": 320, "sched_setscheduler": 144, "sendmmsg": 307,
        "recvmmsg": 299, "signalfd": 282, "io_setup": 206, "io_submit": 209, "rt_sigqueueinfo": 129,
        "rt_tgsigqueueinfo": 297, "socket": 41, "bind": 49, "listen": 50, "accept": 43, "connect": 42,
        "inotify_init": 253,
    },
    "aarch64": {
        "mbind": 235, "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239, "mq_unlink": 181,
        "shmat": 196, "msgsnd": 189, "semop": 193, "ioprio_set": 30, "mknodat": 33, "setxattr": 5,
        "removexattr": 14, "setreuid": 145, "setfsuid": 151, "setgroups": 159, "mlockall": 230,
        "fanotify_mark": 263, "clock_adjtime": 266, "process_vm_writev": 271, "io_setup": 0,
        "rt_sigqueueinfo": 138, "socket": 198, "bind": 200, "listen": 201, "accept": 202,
        "connect": 203,
    },
}  # fmt: skip
# Harmless calls of the lists above, which a table may allow because libraries need them.
HARMLESS = {"signalfd"}


def test_more_system_calls_are_refused(jail: Worker) -> None:
    body = """
    def f(calls):
        return {name: call(number, 0, 0, 0, 0, 0, 0) for name, number in calls.items()}
    """
    refused = {**EVERYWHERE, **MORE[syscalls.machine()]}
    calls = {n: c for n, c in {**refused, **NEW}.items() if n not in HARMLESS}
    result = jail.value(source(body), {"calls": calls})
    # Calls newer than the tables fail with ENOSYS, as on a kernel without them.
    wanted = {name: -38 if name in NEW else -1 for name in calls}
    assert result == wanted


def test_the_calls_of_32_bit_programs_end_the_process(jail: Worker) -> None:
    """With `int 0x80` a 64-bit process uses the table of i386, where 20 is getpid."""
    if syscalls.machine() != "x86_64":
        pytest.skip("another processor")
    body = """
    import mmap
    def f():
        code = bytes.fromhex("b814000000cd80c3")
        page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    """
    result = jail.run(source(body))
    assert result.status is RunStatus.KILLED, result
    assert "SIG" in result.detail


def test_socket_pairs_can_only_transfer_data(jail: Worker) -> None:
    body = """
    def f(socketpair):
        a, b = socket.socketpair()
        program = struct.pack("HxxxxxxP", 1, ctypes.addressof(ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 1))))
        found = {f"filter {n}": attempt(lambda: a.setsockopt(1, n, program)) for n in (26, 51)}
        found.update({f"option {n}": attempt(lambda: a.setsockopt(1, n, struct.pack("i", 4))) for n in (12, 32, 33, 36, 46, 50, 52, 60, 69)})
        found["bind"] = attempt(lambda: a.bind("\\0strata"))
        found["listen"] = attempt(lambda: a.listen())
        found["seqpacket"] = attempt(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        found["raw"] = attempt(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW))
        found["high bits of the family"] = attempt(lambda: 1 / 0 if call(socketpair, (1 << 32) | 2, 1, 0, ctypes.byref(ctypes.c_int64())) < 0 else 1)
        a.setsockopt(1, 20, struct.pack("ll", 1, 0))
        a.send(b"x")
        return {**found, "talk": ["stopped" if b.recv(1) == b"x" else "got", ""]}
    """
    all_stopped(jail.value(source(body), {"socketpair": syscalls.number("socketpair")}))


def test_no_way_back_to_the_files_of_the_machine_is_open(jail: Worker) -> None:
    body = """
    import fcntl, glob
    def f():
        def listed(path):
            found = os.listdir(path)
            assert found
        def opened(path, flags=os.O_RDONLY):
            os.open(path, flags)
        def climbed():
            here = os.open(".", os.O_PATH)
            for _ in range(40):
                here = os.open("..", os.O_PATH | os.O_DIRECTORY, dir_fd=here)
            os.open("etc/shadow", os.O_RDONLY, dir_fd=here)
        def linked(target, name):
            os.symlink(target, name)
            opened(name)
        def through(name):
            os.symlink("/etc", name)
            opened(f"{name}/hostname")
        ways = {
            "climbing": climbed,
            "symlink": lambda: linked("/etc/shadow", "one"),
            "symlink of proc": lambda: linked("/proc/1/root/etc/hostname", "two"),
            "folder of a symlink": lambda: through("three"),
            "hard link": lambda: os.link("/etc/passwd", "four"),
            "hard link followed": lambda: os.link("/etc/passwd", "five", follow_symlinks=True),
            "renamed out": lambda: (open("six", "w").close(), os.rename("six", "/usr/six")),
            "exchanged": lambda: (open("seven", "w").close(), 1 / 0 if LIBC.renameat2(-100, b"seven", -100, b"/usr/bin/env", 2) else 0),
            "whiteout": lambda: (open("eight", "w").close(), 1 / 0 if LIBC.renameat2(-100, b"eight", -100, b"/usr/nine", 4) else 0),
            "own descriptors": lambda: listed("/proc/self/fd"),
            "own root": lambda: listed("/proc/self/root"),
            "own memory": lambda: opened("/proc/self/mem", os.O_RDWR),
            "own program": lambda: opened("/proc/self/exe", os.O_WRONLY),
            "threads": lambda: listed("/proc/thread-self"),
            "namespaces": lambda: 1 / 0 if LIBC.setns(os.open("/proc/self/ns/mnt", os.O_RDONLY), 0) else 0,
            "dev fd": lambda: listed("/dev/fd"),
            "dev shm": lambda: open("/dev/shm/x", "w"),
            "dev tty": lambda: opened("/dev/tty"),
            "dev ptmx": lambda: opened("/dev/ptmx"),
            "dev fuse": lambda: opened("/dev/fuse"),
            "dev kvm": lambda: opened("/dev/kvm"),
            "dev net": lambda: opened("/dev/net/tun"),
            "dev kmsg": lambda: opened("/dev/kmsg"),
            "disks": lambda: opened(glob.glob("/dev/[svn][dv]*")[0]),
            "cgroups": lambda: listed("/sys/fs/cgroup"),
            "sysctl": lambda: open("/proc/sys/kernel/core_pattern", "w"),
            "trigger": lambda: open("/proc/sysrq-trigger", "w"),
            "sockets of services": lambda: listed("/run"),
            "token of a cluster": lambda: listed("/var/run/secrets"),
            "home": lambda: listed("/home"),
            "docker": lambda: opened("/var/run/docker.sock"),
            "unnamed file made a name": lambda: os.link(f"/proc/self/fd/{os.open('.', os.O_TMPFILE | os.O_RDWR)}", "ten", follow_symlinks=True),
            "random seeded": lambda: fcntl.ioctl(os.open("/dev/random", os.O_RDONLY), 0x5206, b""),
            "node": lambda: os.mknod("null", 0o666 | 0o020000, os.makedev(1, 3)),
            "block node": lambda: os.mknod("disk", 0o666 | 0o060000, os.makedev(8, 0)),
            "append only": lambda: fcntl.ioctl(os.open("/usr/bin/env", os.O_RDONLY), 0x40086602, struct.pack("l", 0x20)),
            "immutable": lambda: (open("fixed", "w").close(), fcntl.ioctl(os.open("fixed", os.O_RDWR), 0x40086602, struct.pack("l", 0x10))),
            "mode by the new call": lambda: 1 / 0 if call(452, -100, b"/usr", 0o4777, 0) else 0,
            "attribute": lambda: os.setxattr(".", "user.x", b"x"),
            "capability of a file": lambda: (open("cap", "w").close(), os.setxattr("cap", "security.capability", bytes(20))),
            "chroot": lambda: os.chroot("."),
            "group": lambda: os.setgid(0),
            "core": lambda: __import__("resource").setrlimit(4, (1 << 20, 1 << 20)),
            "memory lock": lambda: __import__("resource").setrlimit(8, (1 << 20, 1 << 20)),
            "program of its own": lambda: (open("run", "w").write("#!/bin/sh\\n"), os.chmod("run", 0o755), subprocess.run(["./run"], check=True)),
        }
        return {name: attempt(way) for name, way in ways.items()}
    """
    all_stopped(jail.value(source(body)))


def test_the_parent_process_of_the_call_has_no_secret(jail: Worker) -> None:
    body = """
    import gc
    def f():
        texts = [repr(vars(m)) for m in list(sys.modules.values()) if getattr(m, "__name__", "").startswith("program")]
        frame = sys._getframe()
        while frame:
            texts.append(repr(frame.f_locals))
            frame = frame.f_back
        texts += [o if isinstance(o, str) else o.decode("latin-1") for o in gc.get_objects() if isinstance(o, (str, bytes))]
        # Some builds of Python keep /dev/urandom open.
        open_now = [n for n in range(256) if attempt(lambda: 1 / (os.fstat(n).st_rdev != os.makedev(1, 9)))[0] == "got"]
        # What the service was started with, and what another call had, put together here.
        return {"service": any("hun" + "ter2" in t for t in texts), "other": any("of-another" + "-call" in t for t in texts), "open": open_now}
    """
    jail.run("def f():\n    return 1", environment={"TOKEN": "of-another-call"})
    result = jail.value(source(body), environment={"TOKEN": "own"})
    assert result == {"service": False, "other": False, "open": [0, 1, 2, 3]}


OF_EACH_LEVEL = ["unprivileged, namespaces", "unprivileged, landlock"]
ENDS = {
    "exit with a list": ("sys.exit([1])", RunStatus.TOOL_ERROR),
    "exit with what compares": (
        "sys.exit(type('X', (), {'__eq__': lambda s, o: 1 / 0, '__hash__': lambda s: 0})())",
        RunStatus.TOOL_ERROR,
    ),
    "exit with true": ("sys.exit(True)", RunStatus.TOOL_ERROR),
    "a code that raises": (
        "raise type('X', (SystemExit,), {'code': property(lambda s: 1 / 0)})()",
        RunStatus.TOOL_ERROR,
    ),
    "a class without a name": (
        "raise type('M', (type,), {'__name__': property(lambda c: 1 / 0)})('X', (Exception,), {})()",
        RunStatus.TOOL_ERROR,
    ),
    "a class that is another": (
        "raise type('X', (Exception,), {'__class__': property(lambda s: 1 / 0)})()",
        RunStatus.TOOL_ERROR,
    ),
    "a message of its own kind": (
        "S = type('S', (str,), {'__getitem__': lambda s, k: object()})\nraise type('X', (Exception,), {'__str__': lambda s: S('x')})()",
        RunStatus.TOOL_ERROR,
    ),
    "half a surrogate as message": ("raise ValueError('\\ud800' * 10)", RunStatus.TOOL_ERROR),
    "a group of thousands": (
        "raise BaseExceptionGroup('x', [ValueError(n) for n in range(5000)])",
        RunStatus.TOOL_ERROR,
    ),
    "a chain of causes": (
        "e = None\nfor n in range(20_000):\n    x = ValueError(n); x.__context__ = e; e = x\nraise e",
        RunStatus.TOOL_ERROR,
    ),
    "exit handlers": ("import atexit\natexit.register(os.write, 1, b'late')", RunStatus.OK),
    "output that raises": (
        "class O:\n    def __getattr__(s, n): 1 / 0\nsys.stdout = sys.stderr = O()",
        RunStatus.OK,
    ),
    "no output": ("os.close(1); os.close(2)", RunStatus.OK),
    "not text": ("os.write(1, b'\\xff\\xfe\\x00\\xed\\xa0\\x80' * 1000)", RunStatus.OK),
    "no end of line": ("os.write(1, b'x' * 60_000)", RunStatus.OK),
    "a thread that answers later": (
        "threading.Thread(target=lambda: (time.sleep(0.2), os.write(3, b'x' * 100))).start()",
        RunStatus.OK,
    ),
    "an alarm": ("signal.setitimer(signal.ITIMER_REAL, 0.001); time.sleep(0.2)", RunStatus.KILLED),
    "stops itself": ("signal.pthread_kill(threading.get_ident(), signal.SIGKILL)", RunStatus.KILLED),
    "a trap": ("signal.raise_signal(signal.SIGTRAP)", RunStatus.KILLED),
}  # fmt: skip


@pytest.mark.parametrize("jail", OF_EACH_LEVEL, indirect=True)
@pytest.mark.parametrize("name", list(ENDS))
def test_every_unusual_end_has_a_clear_status(jail: Worker, name: str) -> None:
    body, status = ENDS[name]
    result = jail.run(source("") + body + "\n", "", limits={"wall_seconds": 8.0})
    if name in ("an alarm", "stops itself", "a trap") and jail.level is Isolation.NAMESPACES:
        # A signal that the first process of a namespace sends to itself does not end it.
        assert result.status in {status, RunStatus.OK}, result
    else:
        assert result.status is status, result
    assert "late" not in result.stdout
    assert str(Path(__file__).parents[3]) not in result.stderr
    json.dumps([result.stdout, result.stderr]).encode()


VALUES = {
    "a dict that lies": "type('D', (dict,), {'items': lambda s: 1 / 0, '__len__': lambda s: -1})(a=1)",
    "a list for ever": "type('L', (list,), {'__iter__': lambda s: iter(int, 1)})([1])",
    "a text that is another": "type('S', (str,), {'encode': lambda s, *a: b'}', '__str__': lambda s: '}'})('x')",
    "a number that is code": "type('I', (int,), {'__repr__': lambda s: '1,\"bad\":2'})(3)",
    "a float that is code": "type('F', (float,), {'__repr__': lambda s: '{'})(3.5)",
    "a model for ever": "(lambda c: c())(type('M', (), {'model_dump': lambda s, mode: s}))",
    "a model that exits": "type('M', (), {'model_dump': lambda s, mode: sys.exit(0)})()",
    "an enum of itself": "(lambda e: (setattr(e.A, '_value_', e.A), e.A)[1])(__import__('enum').Enum('E', 'A'))",
    "keys that are the same": "{1: 'a', '1': 'b', True: 'c', None: 'd', 'null': 'e'}",
    "a key that is no text": "{'\\ud800': 1}",
    "empty lists": "[[]] * 1_200_000",
    "long numbers": "[10 ** 4299] * 50",
    "a number beyond floats": "10 ** 400",
    "control characters": "'\\x00\\x1b[2J\\u202e\\u2028\\x7f'",
}


@pytest.mark.parametrize("jail", OF_EACH_LEVEL, indirect=True)
@pytest.mark.parametrize("name", list(VALUES))
def test_every_unusual_value_is_json_or_an_error(jail: Worker, name: str) -> None:
    wall = 0.4 if name == "a list for ever" else 8.0
    limits = {"wall_seconds": wall, "memory_bytes": 400 * MIB}
    result = jail.run(source(f"def f():\n    return {VALUES[name]}\n"), limits=limits)
    assert result.status in set(RunStatus) - {RunStatus.REFUSED}, result
    if result.status is RunStatus.OK:
        assert json.loads(result.value_json) is not None
        assert len(result.value_json.encode()) <= 4 * MIB
    else:
        assert result.value_json == ""
        assert result.detail or result.failure


def test_all_processes_of_a_fork_storm_end_with_the_call(jail: Worker) -> None:
    body = """
    def f(mark):
        for n in range(60):
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if os.fork() == 0:
                    for _ in range(200):
                        if LIBC.vfork() == 0:
                            LIBC._exit(0)
                    os.execv("/usr/bin/sleep", [mark, "1000"])
                os._exit(0)
            os.wait()
        return 1
    """
    mark = f"strata-storm-{os.getpid()}-{jail.pid}"
    jail.run(source(body), "f", {"mark": mark}, limits={"processes": 40, "wall_seconds": 3.0})
    no_process_has(mark)
    alone(jail)


def test_files_with_unusual_names_are_removed_with_the_scratch_folder(jail: Worker) -> None:
    body = r"""
    def f():
        made = 0
        for name in (b"\n", b"a\nb", b"\xff\xfe", b"-rf", b"*", b"\x1b[2J", b" ", b"x" * 255, b"\xed\xa0\x80"):
            os.mkdir(b"d" + name[:254])
            open(b"f" + name[:254], "w").close()
            made += 2
        os.mkdir("closed", 0)
        os.mkfifo("pipe")
        os.symlink("/", "root")
        os.symlink("loop", "loop")
        for n in range(30):
            os.link("fx" if os.path.exists("fx") else b"f\n", f"link{n}")
        return made
    """
    result = jail.run(source(body))
    assert result.status in {RunStatus.OK, RunStatus.TOOL_ERROR}, result
    alone(jail)
    assert [entry for folder in jail.scratch.iterdir() for entry in folder.iterdir()] == []
