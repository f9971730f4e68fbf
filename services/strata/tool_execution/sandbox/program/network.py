"""The network of a call that may reach some hosts: a way to the service's proxy, and nothing else.

It is a network namespace of the call's own with one interface, ``lo``. What listens there is a
socket whose other end of use is in the service: it is passed out and closed here, so nothing in
the call can accept on it, and no packet of the call leaves the namespace.
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
# Bytes of the buffers of a TCP socket, least, usual and most: the last is what the watchdog takes a
# socket for, while the kernel's own is some MiB.
_BUFFERS = "4096 65536 212992"
_LISTENING = b'{"listening":true}'
CA_FILE = "/etc/ssl/certs/ca-certificates.crt"


def pass_listener(connection: socket.socket, namespaces: bool) -> None:
    """Moves this process into a network namespace of its own and passes a listening socket out.

    Raises:
        OSError: A step is refused; the call must not be made.
    """
    if not namespaces:
        raise OSError("network access needs namespaces")
    kernel.unshare(kernel.CLONE_NEWNET)
    for name in ("tcp_rmem", "tcp_wmem"):
        # Those of this namespace alone.
        with open(f"/proc/sys/net/ipv4/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(_BUFFERS)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        # struct ifreq: the name, the flags, and space for what others need.
        fcntl.ioctl(listener, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
        listener.bind((_HOST, PORT))
        listener.listen(_BACKLOG)
        # The descriptor comes with the first byte, which belongs to the length.
        frame = struct.pack(">I", len(_LISTENING)) + _LISTENING
        rights = array.array("i", [listener.fileno()])
        connection.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def environment(with_certificates: bool) -> dict[str, str]:
    """Returns the variables by which programs find the proxy and the certificates."""
    proxy = f"http://{_HOST}:{PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    variables = {**dict.fromkeys(names, proxy), "NO_PROXY": "", "no_proxy": ""}
    if with_certificates:
        variables.update(dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), CA_FILE))
    return variables
