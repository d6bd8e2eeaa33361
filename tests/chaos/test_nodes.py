"""The network of nodes: partitions, loss and delay of real packets, and a small version of `make nodes`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from chaos.node_network import NetworkUnavailable, Node, NodeNetwork
from chaos.nodes import NodeCluster, partition_while_running


@pytest.fixture
def network() -> Iterator[NodeNetwork]:
    with NodeNetwork() as network:
        try:
            network.add("first")
        except NetworkUnavailable as refused:
            pytest.skip(str(refused))
        yield network


def echo_connection(network: NodeNetwork) -> tuple[Node, socket.socket]:
    """A node, and its connection to an echo server on another one."""
    here, there = network.add("here"), network.add("there")
    listener = there.run(socket.create_server, (there.address, 7000))

    def echo() -> None:
        # A connection that was cut by a partition times out, possibly after the end of the test.
        with suppress(OSError), closing(listener), listener.accept()[0] as connection:
            while data := connection.recv(4096):
                connection.sendall(data)

    threading.Thread(target=echo, daemon=True).start()
    return here, here.run(socket.create_connection, (there.address, 7000), 10)


def round_trip(connection: socket.socket, timeout: float) -> float:
    connection.settimeout(timeout)
    began = time.monotonic()
    connection.sendall(b"x")
    assert connection.recv(16) == b"x"
    return time.monotonic() - began


def test_a_node_reaches_others_only_through_the_network(network: NodeNetwork):
    here, connection = echo_connection(network)
    with connection:
        assert connection.getsockname()[0] == here.address
        round_trip(connection, 10)
    with closing(socket.create_server(("127.0.0.1", 0))) as outside, pytest.raises(OSError):
        here.run(socket.create_connection, ("127.0.0.1", outside.getsockname()[1]), 5)


def test_packets_are_delayed(network: NodeNetwork):
    _, connection = echo_connection(network)
    with connection:
        network.configure(loss=0.0, delay=0.2)
        assert round_trip(connection, 10) >= 0.2


@pytest.mark.parametrize("both", [True, False])
def test_a_connection_survives_a_partition(network: NodeNetwork, both: bool):
    _, connection = echo_connection(network)
    with connection:
        round_trip(connection, 10)
        network.cut(["there"], ["here"], both=both)
        with pytest.raises(TimeoutError):
            round_trip(connection, 0.5)
        network.heal()
        connection.settimeout(30)
        assert connection.recv(16) == b"x"  # TCP sends it again


def test_nothing_is_lost_or_doubled_by_partitions(network: NodeNetwork, tmp_path: Path):
    cluster = NodeCluster(network, tmp_path, servers=2, workers=2, lease=3.0)
    with cluster.running():
        done = partition_while_running(cluster, executions=8, cuts=8, loss=0.05, delay=0.004, within=120)
    assert done.report.violations == [], cluster.log_tail()
    assert sum(done.cuts.values()) == 8
    assert done.report.executions == 8
