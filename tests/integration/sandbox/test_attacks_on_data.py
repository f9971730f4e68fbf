# ruff: noqa: E501 - sources of tools
"""Attacks on files, secrets, processes and network of the machine and the service."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.sandbox.attacks import all_stopped, source
from integration.sandbox.jails import Worker
from strata.shared.sandbox import Isolation


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[Path]:
    """A file that every user of the machine can read and write."""
    path = Path(f"/var/tmp/strata-test-{os.getpid()}-{tmp_path.name}")
    path.write_text("hunter2")
    path.chmod(0o666)
    yield path
    path.unlink()


def test_files_of_the_machine_cannot_be_read(jail: Worker, open_file: Path) -> None:
    body = """
    def f(paths):
        return {p: attempt(lambda: read(p) if not os.path.isdir(p) else os.listdir(p)) for p in paths}
    """
    paths = ["/etc/shadow", "/etc/hostname", "/root", "/home", "/var", "/old", "/proc/self/environ"]
    paths += [
        str(open_file),
        str(Path(__file__)),
        "/proc/1/root/etc/shadow",
        "/sys/kernel",
        "/dev/mem",
    ]
    all_stopped(jail.value(source(body), {"paths": paths}))


def test_only_the_environment_of_the_call_is_readable(jail: Worker) -> None:
    body = """
    def f():
        found = dict(os.environ)
        others = {}
        for pid in range(1, 400):
            others[str(pid)] = attempt(lambda: read(f"/proc/{pid}/environ"))
        here = LIBC.getenv
        here.restype = ctypes.c_char_p
        return {"own": found, "others": others, "libc": repr(here(b"SERVICE_SECRET"))}
    """
    result = jail.value(source(body), environment={"TOKEN": "of this call"})
    assert result["own"].keys() == {"PATH", "HOME", "TMPDIR", "LANG", "TOKEN"}
    assert result["own"]["TOKEN"] == "of this call"
    assert result["libc"] == "None"
    all_stopped(result["others"])


def test_the_memory_of_the_parent_and_the_service_cannot_be_read(jail: Worker) -> None:
    body = """
    def f(pid):
        found = {}
        for target in (os.getppid(), pid, 1):
            for name in ("mem", "maps", "cmdline", "fd", "cwd", "exe"):
                path = f"/proc/{target}/{name}"
                found[path] = attempt(lambda: os.readlink(path) if name in ("cwd", "exe") else read(path))
        return found
    """
    all_stopped(jail.value(source(body), {"pid": jail.pid}))


@pytest.fixture
def listener() -> Iterator[tuple[int, list[Any]]]:
    """A server on the loopback interface, and the connections it has received."""
    came: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        stop = threading.Event()

        def accept() -> None:
            while not stop.is_set():
                try:
                    came.append(server.accept()[1])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1], came
        stop.set()
        thread.join()


def test_a_server_on_loopback_cannot_be_reached(
    jail: Worker, listener: tuple[int, list[Any]]
) -> None:
    body = """
    def f(port):
        return {host: attempt(lambda: socket.create_connection((host, port), 1))
                for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0")}
    """
    port, came = listener
    all_stopped(jail.value(source(body), {"port": port}))
    assert came == []


def test_no_network_of_any_kind_is_reachable(jail: Worker) -> None:
    body = """
    def f():
        kinds = {
            "metadata": lambda: socket.create_connection(("169.254.169.254", 80), 1),
            "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "tcp6": lambda: socket.socket(socket.AF_INET6),
            "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
            "packet": lambda: socket.socket(17, socket.SOCK_RAW),
            "netlink": lambda: socket.socket(16, socket.SOCK_RAW),
            "vsock": lambda: socket.socket(40),
            "alg": lambda: socket.socket(38, 5),
            "bluetooth": lambda: socket.socket(31, 3),
            "pair of tcp": lambda: socket.socketpair(socket.AF_INET),
        }
        return {name: attempt(action) for name, action in kinds.items()}
    """
    all_stopped(jail.value(source(body)))


def test_names_cannot_be_resolved(jail: Worker) -> None:
    body = """
    def f():
        return {"dns": attempt(lambda: socket.getaddrinfo("example.com", 80))}
    """
    all_stopped(jail.value(source(body)))


def test_unix_sockets_of_the_machine_cannot_be_reached(jail: Worker, tmp_path: Path) -> None:
    body = """
    def f(path, name):
        def connect(address):
            s = socket.socket(socket.AF_UNIX)
            s.connect(address)
        def through_a_pair(address):
            socket.socketpair()[0].connect(address)
        def by_datagram(address):
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            return a.sendto(b"x", address)
        return {f"{how.__name__} {address}": attempt(lambda: how(address))
                for how in (connect, through_a_pair, by_datagram) for address in (path, "\\0" + name)}
    """
    path = f"/tmp/strata-test-{os.getpid()}.sock"
    name = f"strata-test-{os.getpid()}"
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    for kind in kinds:
        with (
            socket.socket(socket.AF_UNIX, kind) as on_path,
            socket.socket(socket.AF_UNIX, kind) as no_path,
        ):
            on_path.bind(path)
            Path(path).chmod(0o777)
            no_path.bind("\0" + name)
            if kind == socket.SOCK_STREAM:
                on_path.listen()
                no_path.listen()
            try:
                all_stopped(jail.value(source(body), {"path": path, "name": name}))
                no_path.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    _ = no_path.accept() if kind == socket.SOCK_STREAM else no_path.recv(1)
            finally:
                Path(path).unlink()


def test_other_processes_cannot_be_traced(jail: Worker) -> None:
    body = """
    from ctypes import c_void_p
    def f(pid):
        import platform
        ptrace, readv, writev, kcmp = (101, 310, 311, 312) if platform.machine() == "x86_64" else (117, 270, 271, 272)
        found = {}
        for target in (pid, os.getppid(), 1):
            buffer = ctypes.create_string_buffer(64)
            vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)
            found[f"attach {target}"] = call(ptrace, 16, target, 0, 0)
            found[f"seize {target}"] = call(ptrace, 0x4206, target, 0, 0)
            found[f"read {target}"] = call(readv, target, ctypes.byref(vector), 1, ctypes.byref(vector), 1, 0)
            found[f"write {target}"] = call(writev, target, ctypes.byref(vector), 1, ctypes.byref(vector), 1, 0)
            found[f"kcmp {target}"] = call(kcmp, target, os.getpid(), 0, 0, 0)
        return found
    """
    result = jail.value(source(body), {"pid": jail.pid})
    assert set(result.values()) == {-1}, result  # EPERM


def test_other_processes_cannot_be_signalled_or_limited(jail: Worker) -> None:
    body = """
    import resource
    def f(pid):
        own = os.getpid()
        found = {}
        for target in (pid, os.getppid() or pid, -pid):
            found[f"kill {target}"] = attempt(lambda: os.kill(target, signal.SIGTERM))
        for target in (pid, os.getppid() or pid):
            found[f"limit {target}"] = attempt(lambda: resource.prlimit(target, resource.RLIMIT_CPU, (1, 1)))
            found[f"affinity {target}"] = attempt(lambda: os.sched_setaffinity(target, {0}))
            found[f"handle {target}"] = attempt(lambda: os.pidfd_open(target) if target != own else 1 / 0)
            found[f"thread {target}"] = attempt(lambda: 1 / 0 if LIBC.tgkill(target, target, 15) else 0)
        return found
    """
    all_stopped(jail.value(source(body), {"pid": jail.pid}))
    assert jail.value("def f():\n    return 1") == 1


def test_the_kernel_cannot_be_used_to_signal_others(jail: Worker) -> None:
    body = """
    import fcntl, array
    def f(pid):
        owner = array.array("i", [pid])
        return {
            "owner": attempt(lambda: fcntl.fcntl(3, fcntl.F_SETOWN, pid)),
            "signal": attempt(lambda: fcntl.fcntl(3, 10, signal.SIGKILL)),
            "control": attempt(lambda: fcntl.ioctl(3, 0x8901, owner)),
        }
    """
    all_stopped(jail.value(source(body), {"pid": jail.pid}))


def test_folders_of_the_machine_cannot_be_watched(jail: Worker) -> None:
    body = """
    def f():
        watch = LIBC.inotify_init1(0)
        return [LIBC.inotify_add_watch(watch, p, 0xfff) for p in (b"/var/tmp", b"/var/log", b"/home")]
    """
    assert jail.value(source(body)) == [-1, -1, -1]


def test_a_signal_to_all_processes_reaches_no_other_process(jail: Worker) -> None:
    jail.run(source("def f():\n    os.kill(-1, 9)\n"))
    assert jail.value("def f():\n    return 1") == 1


def test_nothing_is_written_outside_the_scratch_folder(jail: Worker, open_file: Path) -> None:
    body = """
    def f(own):
        def write(path):
            with open(path, "a") as file:
                file.write("x")
        places = ["/usr/x", "/etc/passwd", "/etc/x", "/x", "/dev/x", "/var/tmp/x", "/dev/shm/x", "/proc/x",
                  "/run/x", "/tmp/../x", own, os.path.dirname(os.__file__) + "/os.py"]
        found = {path: attempt(lambda: write(path)) for path in places}
        found["mode"] = attempt(lambda: os.chmod(own, 0))
        found["owner"] = attempt(lambda: os.chown(own, os.getuid(), os.getgid()))
        found["time"] = attempt(lambda: os.utime(own, (1, 1)))
        found["cut"] = attempt(lambda: os.truncate(own, 0))
        found["name"] = attempt(lambda: os.unlink(own))
        found["attribute"] = attempt(lambda: os.setxattr(own, "user.x", b"x"))
        return found
    """
    before = open_file.stat()
    all_stopped(jail.value(source(body), {"own": str(open_file)}))
    after = open_file.stat()
    assert open_file.read_text() == "hunter2"
    assert (before.st_mode, before.st_uid, before.st_mtime) == (
        after.st_mode,
        after.st_uid,
        after.st_mtime,
    )


def test_files_of_the_services_own_user_cannot_be_changed(jail: Worker) -> None:
    """Without a separate user, a tool runs as the owner of the service's files."""
    path = Path(f"/var/tmp/strata-test-owned-{os.getpid()}")
    path.write_text("x")
    if os.geteuid() == 0:
        for user in (65_534, 64_177):
            os.chown(path, user, user)
            _try_to_change(jail, path)
    else:
        _try_to_change(jail, path)
    path.unlink()


def _try_to_change(jail: Worker, path: Path) -> None:
    body = """
    def f(own):
        return {"mode": attempt(lambda: os.chmod(own, 0)), "time": attempt(lambda: os.utime(own)),
                "mode at": attempt(lambda: os.chmod(os.path.basename(own), 0, dir_fd=os.open("/var/tmp", os.O_PATH))),
                "cut": attempt(lambda: os.truncate(own, 0))}
    """
    before = path.stat()
    all_stopped(jail.value(source(body), {"own": str(path)}))
    after = path.stat()
    assert (before.st_mode, before.st_size, before.st_mtime) == (
        after.st_mode,
        after.st_size,
        after.st_mtime,
    )


def test_links_and_renames_cannot_leave_the_scratch_folder(jail: Worker, open_file: Path) -> None:
    body = """
    def f(out):
        os.symlink(out, "soft")
        os.symlink("/", "root")
        with open("own", "w") as file:
            file.write("x")
        folder = os.path.dirname(out)
        return {
            "read through": attempt(lambda: read("soft")),
            "write through": attempt(lambda: open("soft", "w").write("x")),
            "list root": attempt(lambda: read("root/etc/shadow")),
            "hard": attempt(lambda: os.link(out, "hard")),
            "rename in": attempt(lambda: os.rename(out, "mine")),
            "rename out": attempt(lambda: os.rename("own", "/usr/own")),
            "link out": attempt(lambda: os.link("own", "/usr/own")),
            "exchange": attempt(lambda: os.replace("own", "/etc/passwd")),
        }
    """
    result = jail.value(source(body), {"out": str(open_file)})
    all_stopped(result)
    assert open_file.read_text() == "hunter2"


def test_descriptors_of_the_service_are_not_inherited(jail: Worker) -> None:
    body = """
    def f():
        open_ones = []
        for n in range(0, 4096):
            try:
                status = os.fstat(n)
            except OSError:
                continue
            # Some builds of Python keep /dev/urandom open.
            if status.st_rdev != os.makedev(1, 9):
                open_ones.append(n)
        return open_ones
    """
    # Nothing to read, two outputs, and the socket of its own call.
    assert jail.value(source(body)) == [0, 1, 2, 3]


def test_the_service_and_its_modules_are_not_in_memory(jail: Worker) -> None:
    body = """
    def f():
        return sorted(m for m in sys.modules if m.split(".")[0] in ("strata", "grpc", "sqlalchemy")), sys.path
    """
    modules, path = jail.value(source(body))
    assert modules == []
    assert not [p for p in path if "strata" in p]


def test_devices_are_not_made_or_opened(jail: Worker) -> None:
    body = """
    import stat
    def f():
        found = {f"mknod {kind:o}": attempt(lambda: os.mknod("device", kind | 0o666, os.makedev(1, 3)))
                 for kind in (stat.S_IFCHR, stat.S_IFBLK)}
        for path in ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/tty", "/dev/ptmx", "/dev/fuse", "/dev/net/tun"):
            found[path] = attempt(lambda: os.open(path, os.O_RDWR))
        return found
    """
    all_stopped(jail.value(source(body)))
    good = source(
        'def f():\n    return [len(read("/dev/urandom", 8)), open("/dev/null", "w").write("x")]'
    )
    assert jail.value(good) == [8, 1]


def test_a_program_or_library_in_the_scratch_folder_cannot_be_started(jail: Worker) -> None:
    body = """
    import shutil
    def f():
        shutil.copyfile("/usr/bin/env", "env")
        attempt(lambda: os.chmod("env", 0o755))
        fd = os.open("env", os.O_RDONLY)
        return {"start": attempt(lambda: os.execv("./env", ["env"])), "by handle": attempt(lambda: os.execve(fd, ["env"], {}))}
    """
    all_stopped(jail.value(source(body)))
    if jail.level is Isolation.NAMESPACES:
        load = """
        import glob, shutil
        def f():
            shutil.copyfile(sorted(glob.glob("/usr/lib/*/libz.so*") + glob.glob("/usr/lib/*/libm.so*"))[0], "x.so")
            return {"load": attempt(lambda: ctypes.CDLL(os.path.abspath("x.so")))}
        """
        all_stopped(jail.value(source(load)))
