"""Forwards IP packets between the nodes of a `NodeNetwork`, and delays or drops them.

A process of its own. It receives the TUN device of each node over a Unix socket, as (number of the node, file
descriptor), and then the faults of the network as JSON. Kernels without the `netem` queue cannot delay or lose packets
themselves.
"""

from __future__ import annotations

import heapq
import os
import random
import selectors
import socket
import sys
import time

import msgspec
from msgspec import Struct, field

MAX_PACKET = 65536
SOURCE, DESTINATION = 15, 19  # offsets of the last byte of the addresses in an IPv4 header


class Faults(Struct, frozen=True):
    """What happens to packets: `blocked` are pairs (from, to) of node numbers."""

    blocked: set[tuple[int, int]] = field(default_factory=set)
    loss: float = 0.0  # share of packets that are dropped
    delay: float = 0.0  # seconds, at most; a packet is delayed by half of it to all of it


class PacketRouter:
    """The devices of all nodes, and the packets on their way."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._devices: dict[int, int] = {}  # number of the node -> file descriptor
        self._faults = Faults()
        self._delayed: list[tuple[float, int, int, bytes]] = []  # time, sequence number, device, packet
        self._sequence = 0
        self._random = random.Random(1)

    def run(self) -> None:
        """Forward packets until the control socket is closed."""
        while True:
            timeout = max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else None
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._control:
                    if not self._configure():
                        return
                else:
                    self._forward(key.fd)
            now = time.monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                _, _, device, packet = heapq.heappop(self._delayed)
                _write(device, packet)

    def _configure(self) -> bool:
        """Read one message of the control socket; False at its end."""
        data, descriptors, _, _ = socket.recv_fds(self._control, MAX_PACKET, 1)
        if not data:
            return False
        if descriptors:
            (device,) = descriptors
            os.set_blocking(device, False)
            self._devices[int(data)] = device
            self._selector.register(device, selectors.EVENT_READ)
        else:
            self._faults = msgspec.json.decode(data, type=Faults)
        self._control.send(b"ok")
        return True

    def _forward(self, source: int) -> None:
        try:
            packet = os.read(source, MAX_PACKET)
        except BlockingIOError:
            return
        if len(packet) <= DESTINATION or packet[0] >> 4 != 4:
            return  # not IPv4: a multicast of IPv6
        faults, to = self._faults, packet[DESTINATION]
        device = self._devices.get(to)
        if device is None or (packet[SOURCE], to) in faults.blocked:
            return
        if faults.loss and self._random.random() < faults.loss:
            return
        if faults.delay:
            self._sequence += 1
            due = time.monotonic() + faults.delay * self._random.uniform(0.5, 1.0)
            heapq.heappush(self._delayed, (due, self._sequence, device, packet))
        else:
            _write(device, packet)


def _write(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError:
        return  # the queue of the device is full, or its node is gone: the packet is lost


if __name__ == "__main__":
    PacketRouter(socket.socket(fileno=int(sys.argv[1]))).run()
