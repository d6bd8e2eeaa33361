"""A network of nodes on one machine: each has its own network namespace and IP address.

A node is a thread in a namespace of its own, and all processes that the thread starts are in this namespace too. Its
only device besides loopback is a TUN device, whose packets a `PacketRouter` forwards. So partitions, loss and delay
affect real TCP connections: a peer that is cut off sends no reset.

Needs Linux and root (CAP_SYS_ADMIN, CAP_NET_ADMIN); nothing is visible outside of the namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from types import TracebackType
from typing import ParamSpec, TypeVar

import msgspec

from chaos.packet_router import Faults

NETWORK = "10.77.0"
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFFLAGS = 0x8916, 0x891C, 0x8914
IFF_UP_RUNNING = 0x1 | 0x40

P = ParamSpec("P")
T = TypeVar("T")


class NetworkUnavailable(RuntimeError):
    """This process may not create network namespaces."""


class Node:
    """A host of the network."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.address = f"{NETWORK}.{number}"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"node-{name}")

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the namespace of the node, in which it opens connections and starts processes."""
        return self._thread.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        """Leave the namespace, which exists as long as processes are in it."""
        self._thread.shutdown()


class NodeNetwork:
    """All nodes, and the faults between them."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._faults = Faults()

    def __enter__(self) -> NodeNetwork:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._router = subprocess.Popen(
                [sys.executable, "-m", "chaos.packet_router", str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._control.close()
        self._router.wait(20)
        for node in self._nodes.values():
            node.close()

    def add(self, name: str) -> Node:
        """A new host; NetworkUnavailable if this process lacks the permission."""
        node = Node(name, 10 + len(self._nodes))
        try:
            device = node.run(_enter_namespace, node.address)
        except OSError as refused:
            node.close()
            raise NetworkUnavailable(f"cannot create a network namespace ({refused}); run as root") from None
        try:
            socket.send_fds(self._control, [str(node.number).encode()], [device])
            self._control.recv(16)
        finally:
            os.close(device)  # the router has its own descriptor
        self._nodes[name] = node
        return node

    def address(self, name: str) -> str:
        """The IP address of a node."""
        return self._nodes[name].address

    def configure(self, *, loss: float, delay: float) -> None:
        """Lose this share of all packets, and delay the others by up to `delay` seconds."""
        self._set(msgspec.structs.replace(self._faults, loss=loss, delay=delay))

    def cut(self, senders: Iterable[str], receivers: Collection[str], *, both: bool = True) -> None:
        """Drop all packets from some nodes to others; with `both`, in both directions. Replaces earlier cuts."""
        pairs = {
            (self._nodes[a].number, self._nodes[b].number) for a, b in product(senders, receivers) if a != b
        }  # fmt: skip
        self._set(msgspec.structs.replace(self._faults, blocked=pairs | {(b, a) for a, b in pairs} if both else pairs))

    def heal(self) -> None:
        """End all cuts."""
        self._set(msgspec.structs.replace(self._faults, blocked=set()))

    def _set(self, faults: Faults) -> None:
        self._faults = faults
        self._control.send(msgspec.json.encode(faults))
        self._control.recv(16)


def _enter_namespace(address: str) -> int:
    """Move this thread into a new network namespace, with an address of its own; returns its TUN device."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"noetl0", IFF_TUN | IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as settings:
        _configure(settings, SIOCSIFADDR, _address(address))
        _configure(settings, SIOCSIFNETMASK, _address("255.255.255.0"))
        for name in (b"lo", b"noetl0"):
            _configure(settings, SIOCSIFFLAGS, struct.pack("H22x", IFF_UP_RUNNING), name)
    return device


def _configure(settings: socket.socket, request: int, value: bytes, name: bytes = b"noetl0") -> None:
    fcntl.ioctl(settings, request, struct.pack("16s", name) + value)


def _address(text: str) -> bytes:
    return struct.pack("HH4s16x", socket.AF_INET, 0, socket.inet_aton(text))
