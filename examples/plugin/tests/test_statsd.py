"""The tests of the plug-in: `run_tool` runs the kind without an engine."""

import socket

from noetl.testing import ToolHost, run_tool


def test_a_metric_is_sent():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        host = ToolHost(credentials={"metrics": {"host": "127.0.0.1", "port": server.getsockname()[1]}})
        outcome = run_tool("statsd", {"auth": "metrics", "metric": "orders", "value": 3}, host=host)
        assert server.recv(100) == b"orders:3|c"
    assert (outcome.status, outcome.helpers) == ("ok", {"statsd": {"bytes": 10}})


def test_an_address_that_the_policy_forbids_is_an_error():
    host = ToolHost(credentials={"metrics": {"host": "10.0.0.1"}}, denied=("10.0.0.1",))
    outcome = run_tool("statsd", {"auth": "metrics", "metric": "orders"}, host=host)
    assert outcome.error is not None
    assert outcome.error.kind == "auth"
