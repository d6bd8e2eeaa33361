"""Kind `redis` against a real server."""

from __future__ import annotations

import pytest

from noetl.testing import ToolHost, run_tool


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
