"""The network of a call with hosts: only the connection to the proxy of the service.

The call gets a new network namespace with one interface, ``lo``. The listening socket is passed to
the service and closed here. So nothing in the call can accept connections on it, and no packet of
the call leaves the namespace.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from . import kernel

PORT = 3128
_HOST = "127.0.0.1"
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_BACKLOG = 64
# Minimum, default and maximum buffer size of a TCP socket. The watchdog counts a socket with the
# maximum; the kernel's own maximum is several MiB.
_BUFFERS = "4096 65536 212992"
_LISTENING = b'{"listening":true}'
CA_FILE = "/etc/ssl/certs/ca-certificates.crt"


def pass_listener(connection: socket.socket, namespaces: bool) -> None:
    """Moves this process into a new network namespace and passes a listening socket out.

    Raises:
        OSError: A step failed; the call must not be run.
    """
    if not namespaces:
        raise OSError("network access needs namespaces")
    kernel.unshare(kernel.CLONE_NEWNET)
    for name in ("tcp_rmem", "tcp_wmem"):
        # Applies only to this namespace.
        with open(f"/proc/sys/net/ipv4/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(_BUFFERS)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        # struct ifreq: name, flags and padding.
        fcntl.ioctl(listener, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
        listener.bind((_HOST, PORT))
        listener.listen(_BACKLOG)
        # The descriptor arrives with the first byte, which is part of the length.
        frame = struct.pack(">I", len(_LISTENING)) + _LISTENING
        rights = array.array("i", [listener.fileno()])
        connection.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def environment(with_certificates: bool) -> dict[str, str]:
    """Returns the environment variables for the proxy and the CA file."""
    proxy = f"http://{_HOST}:{PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    variables = {**dict.fromkeys(names, proxy), "NO_PROXY": "", "no_proxy": ""}
    if with_certificates:
        variables.update(dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), CA_FILE))
    return variables
