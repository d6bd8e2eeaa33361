"""Kind `redis` against a real server."""

from __future__ import annotations

import socket
import threading

import pytest

from noetl.testing import ToolHost, run_tool
from noetl.tool import Timeout


@pytest.fixture
def run(redis_server):
    host = ToolHost(credentials={"cache": redis_server})

    def run(**given):
        return run_tool("redis", {"auth": "cache", **given}, host=host)

    run(command="FLUSHALL")
    return run


def test_one_command_returns_its_reply(run):
    assert run(command=["SET", "a", 1]).data is True
    outcome = run(command="GET a")
    assert (outcome.data, outcome.helpers) == ("1", {"redis": {"commands": 1}})


def test_commands_are_sent_together_and_values_are_json(run):
    replies = run(commands=[["HSET", "o:1", "items", [1, {"b": "ü"}]], ["HGETALL", "o:1"], ["LRANGE", "none", 0, -1]])
    assert replies.data == [1, {"items": '[1,{"b":"ü"}]'}, []]
    assert run(command=["HGET", "o:1", "items"], json=True).data == [1, {"b": "ü"}]


def test_a_transaction_changes_nothing_if_a_command_is_unknown(run):
    outcome = run(commands=[["SET", "a", 1], ["NO_SUCH_COMMAND"]], transaction=True)
    assert outcome.error.kind == "client_error"
    assert run(command=["EXISTS", "a"]).data == 0


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"command": []}, "schema", "no words"),
        ({"command": "GET 'a"}, "schema", "use a list"),
        ({"commands": []}, "schema", "at least one"),
        ({"command": ["LPUSH"]}, "client_error", "wrong number of arguments"),
        ({"command": ["PING"], "auth": "nothing"}, "auth", "nothing"),
        ({"command": ["PING"], "auth": {"host": "127.0.0.1", "port": 1}}, "connection", "127.0.0.1:1"),
    ],
)
def test_an_error_says_what_is_wrong(run, given, kind, said):
    outcome = run(**given)
    assert outcome.error.kind == kind
    assert said in outcome.error.message


def test_a_wrong_password_is_an_auth_error(run, redis_server):
    outcome = run(command="PING", auth={**redis_server, "password": "wrong"})
    assert outcome.error.kind == "auth"
    assert "wrong" not in outcome.error.message.split()


def test_a_command_that_blocks_ends_with_the_timeout(redis_server):
    outcome = run_tool("redis", {"auth": redis_server, "command": ["BLPOP", "empty", 0]}, timeout=0.3)
    assert outcome.error.kind == "timeout"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("SELECT 3", "`db` of `auth`"),
        (["auth", "x"], "`auth`"),
        ("multi", "`transaction: true`"),
        (["WATCH", "a"], "`transaction: true`"),
        ("SUBSCRIBE news", "use a stream"),
        ("MONITOR", "use a stream"),
        ("client reply off", "leave it out"),
    ],
)
def test_commands_that_change_the_shared_connection_are_refused(redis_server, command, said):
    for given in ({"command": command}, {"commands": [["PING"], command]}):
        outcome = run_tool("redis", {"auth": redis_server, **given})
        assert outcome.error.kind == "schema"
        assert said in outcome.error.message


def test_a_command_is_sent_once(free_port):
    """A command whose connection is lost may have been executed: the rules of the task decide about a repetition."""
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                connections.append(client)
                client.recv(1000)
                client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        auth = {"host": "127.0.0.1", "port": server.getsockname()[1]}
        outcome = run_tool("redis", {"auth": auth, "command": ["INCR", "a"]})
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert outcome.error.kind == "connection"
    assert len(connections) == 1


def test_a_wrong_database_and_a_missing_password_are_explained(redis_server):
    outcome = run_tool("redis", {"auth": {**redis_server, "db": "many"}, "command": "PING"})
    assert outcome.error.message == "`db` of a Redis server must be a number, not 'many'"


@pytest.mark.parametrize(
    ("host", "fields", "reason"),
    [
        ("127.0.0.1", {"ca": "FILE"}, None),
        ("127.0.0.1", {"ca": "TEXT", "tls": True}, None),
        ("127.0.0.1", {"tls": True, "verify": False}, None),
        ("127.0.0.1", {"tls": True}, "certificate verify failed"),
        ("localhost", {"ca": "FILE"}, "certificate is not valid for 'localhost'"),
        ("localhost", {"ca": "TEXT"}, "certificate is not valid for 'localhost'"),
        ("127.0.0.1", {"ca": "/no/such/file"}, "No such file"),
    ],
)
def test_the_certificate_of_the_server_is_checked(redis_server, redis_tls, host, fields, reason):
    given = {"FILE": str(redis_tls["ca"]), "TEXT": redis_tls["ca"].read_text()}
    tls = {name: given.get(value, value) for name, value in fields.items()}
    auth = {**redis_server, "host": host, "port": redis_tls["port"], **tls}
    outcome = run_tool("redis", {"auth": auth, "command": ["PING"]})
    if reason is None:
        assert outcome.error is None, outcome.error
    else:
        assert reason in outcome.error.message
        assert outcome.error.kind in ("connection", "schema")
        assert "`ca`" in outcome.error.message


def test_a_server_that_accepts_but_does_not_answer_ends_with_the_timeout_of_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        auth = {"host": "127.0.0.1", "port": server.getsockname()[1], "password": "secret"}
        outcome = run_tool("redis", {"auth": auth, "command": "PING"}, timeout=Timeout(connect=0.2, total=30))
    assert outcome.error.kind == "timeout" and "check `host`, `port` and `tls`" in outcome.error.message


def test_bytes_that_are_no_text_are_base64_and_json_has_no_nan(run):
    run(command=["EVAL", r"return redis.call('SET', 'bytes', '\255\0\254')", 0])
    assert [run(command=["GET", "bytes"], json=parse).data for parse in (False, True)] == ["/wD+", "/wD+"]
    run(command=["SET", "nan", {"x": float("nan")}])
    assert run(command=["GET", "nan"]).data == '{"x":"NaN"}'
