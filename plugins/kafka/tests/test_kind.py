"""Kind `kafka` against librdkafka's mock cluster."""

from __future__ import annotations

import certificates
import pytest
from confluent_kafka import Consumer
from noetl_kafka.connection import check_cluster, client_settings, explain
from tls_proxy import tls_proxy

from noetl.testing import ToolHost, run_tool
from noetl.tool import Timeout


@pytest.fixture
def run(host):
    def run(action, **given):
        return run_tool("kafka", {"auth": "events", "action": action, **given}, host=host, timeout=60)

    return run


def test_messages_are_produced_and_consumed(run, cluster):
    topic = cluster.new_topic()
    messages = [
        {"key": "a", "value": {"ü": [1, None]}, "headers": {"trace": "x"}, "partition": 2},
        {"key": "a", "value": "plain text", "partition": 2},
        {"value": None, "key": "a", "partition": 2},
    ]
    produced = run("produce", topic=topic, messages=messages)
    assert produced.error is None
    assert produced.data["messages"] == [{"partition": 2, "offset": offset} for offset in range(3)]
    found = run("consume", topic=topic)
    assert found.error is None
    rows = found.data["messages"]
    assert [row["value"] for row in rows] == [{"ü": [1, None]}, "plain text", None]
    assert (rows[0]["key"], rows[0]["headers"], rows[0]["partition"]) == ("a", {"trace": "x"}, 2)
    assert found.data["offsets"] == {topic: {"0": 0, "1": 0, "2": 3, "3": 0}}


def test_one_message_and_bare_values(run, cluster):
    topic = cluster.new_topic()
    assert run("produce", topic=topic, value={"n": 1}, key=7).data["count"] == 1
    assert run("produce", topic=topic, messages=[{"n": 2}, "three"]).data["count"] == 2
    values = [row["value"] for row in run("consume", topic=topic).data["messages"]]
    assert sorted(map(str, values)) == ["three", "{'n': 1}", "{'n': 2}"]


def test_an_empty_topic_is_consumed_at_once(run, cluster):
    found = run("consume", topic=cluster.new_topic())
    assert (found.error, found.data["messages"]) == (None, [])


def test_a_bound_is_kept_and_a_group_continues(run, cluster):
    topic = cluster.new_topic()
    cluster.produce(topic, *(str(number) for number in range(10)))
    first = run("consume", topic=topic, group="g1", limit=4)
    assert [row["value"] for row in first.data["messages"]] == [0, 1, 2, 3]
    assert cluster.committed(topic, "g1") == {}  # not before the messages are processed
    assert run("commit", group="g1", offsets=first.data["offsets"]).error is None
    assert cluster.committed(topic, "g1")[0] == 4
    rest = run("consume", topic=topic, group="g1", commit=True)
    assert [row["value"] for row in rest.data["messages"]] == list(range(4, 10))
    assert run("consume", topic=topic, group="g1").data["count"] == 0


def test_reading_starts_where_the_task_says(run, cluster):
    topic = cluster.new_topic()
    cluster.produce(topic, *(str(number) for number in range(5)))
    assert run("consume", topic=topic, start="latest").data["count"] == 0
    later = run("consume", topic=topic, start={"0": 3})
    assert [row["value"] for row in later.data["messages"]] == [3, 4]


def test_messages_that_arrive_while_waiting(run, cluster):
    import threading

    topic = cluster.new_topic()
    timer = threading.Timer(0.5, cluster.produce, (topic, "late"))
    timer.start()
    found = run("consume", topic=topic, wait=30, limit=1)
    timer.join()
    assert [row["value"] for row in found.data["messages"]] == ["late"]


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"action": "produce", "topic": "t"}, "schema", "`messages` or `value`"),
        ({"action": "produce", "value": "x"}, "schema", "requires `topic`"),
        ({"action": "consume"}, "schema", "requires `topic`"),
        ({"action": "consume", "topic": "t", "commit": True}, "schema", "requires `group`"),
        ({"action": "consume", "topic": "t", "start": "middle"}, "schema", "earliest, latest"),
        ({"action": "commit", "group": "g", "offsets": {"t": 1}}, "schema", "partition"),
        ({"action": "read", "topic": "t"}, "schema", "must be one of"),
        ({"action": "consume", "topic": "t", "config": {"plugin.library.paths": "/x"}}, "schema", "cannot be set"),
        ({"action": "consume", "topic": "t", "config": {"no.such.setting": 1}}, "schema", "no.such.setting"),
        ({"action": "consume", "topic": "t", "auth": {"user": "x"}}, "schema", "`servers`"),
        ({"action": "consume", "topic": "t", "auth": "nothing"}, "auth", "nothing"),
    ],
)
def test_an_error_says_what_is_wrong(host, given, kind, said):
    outcome = run_tool("kafka", {"auth": "events", **given}, host=host, timeout=30)
    assert (outcome.error.kind, said in outcome.error.message) == (kind, True), outcome.error


@pytest.mark.parametrize("action", ["produce", "consume"])
def test_a_cluster_that_cannot_be_reached_is_retryable(action):
    given = {"auth": {"servers": "127.0.0.1:1"}, "action": action, "topic": "t", "value": "x"}
    outcome = run_tool("kafka", given, timeout=2)
    assert outcome.error.kind in ("connection", "timeout")
    assert outcome.error.retryable


@pytest.mark.parametrize(
    "given",
    [
        {"action": "produce", "topic": "t", "value": "x"},
        {"action": "consume", "topic": "t"},
    ],
)
def test_a_refused_connection_is_explained_and_nothing_is_printed(given, capfd):
    auth = {"servers": "127.0.0.1:1"}
    outcome = run_tool("kafka", {"auth": auth, **given}, spec={}, timeout=3.0)
    assert outcome.error.kind == "connection", outcome.error
    assert "127.0.0.1:1" in outcome.error.message
    assert "Connection refused" in outcome.error.message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"action": "produce", "messages": [{"value": "x", "partition": "first"}]}, "`partition`"),
        ({"action": "consume", "start": {"0": "first"}}, "start"),
        ({"action": "consume", "limit": "many"}, "`limit`"),
        ({"action": "produce", "value": "x", "config": {"logger": "x"}}, "logger cannot be set"),
        ({"action": "produce", "value": "x", "config": {"error_cb": "x"}}, "error_cb cannot be set"),
        *(
            ({"action": "produce", "value": "x", "config": {name: "x"}}, f"{name} cannot be set")
            for name in (
                "metadata.broker.list",
                "bootstrap.servers",
                "sasl.kerberos.kinit.cmd",
                "sasl.kerberos.keytab",
                "ssl.certificate.location",
                "ssl.ca.location",
                "ssl.crl.location",
                "https.ca.location",
                "ssl.providers",
                "ssl.engine.id",
                "test.mock.num.brokers",
                "sasl.oauthbearer.assertion.private.key.file",
                "opaque",
            )
        ),
    ],
)
def test_a_wrong_value_is_explained(cluster, given, said):
    outcome = run_tool("kafka", {"auth": cluster.auth, "topic": cluster.new_topic(), **given})
    assert outcome.error.kind == "schema", outcome.error
    assert said in outcome.error.message


@pytest.mark.parametrize("auth", ["kafka://SERVERS", {"servers": "SERVERS"}, {"servers": ["SERVERS"]}, {"dsn": "SERVERS"},
                                  {"bootstrap_servers": "SERVERS"}, {"brokers": "SERVERS"}, {"host": "HOST", "port": "PORT"}])  # fmt: skip
def test_a_cluster_of_a_playbook_is_refused_under_a_network_policy(cluster, auth):
    """The brokers that it advertises could not be checked. One of a stored credential is used."""

    class PolicyHost(ToolHost):
        def address_check(self, *places):
            return None if places == (cluster.servers,) and self.is_stored else self.allows_address

    def given(value):
        if isinstance(value, dict):
            return {name: given(each) for name, each in value.items()}
        if isinstance(value, list):
            return [given(each) for each in value]
        host, _, port = cluster.servers.partition(":")
        return value.replace("SERVERS", cluster.servers).replace("HOST", host).replace("PORT", port)

    host = PolicyHost(credentials={"events": cluster.auth}, denied=frozenset({"10.0.0.1"}))
    call = {"action": "produce", "topic": cluster.new_topic(), "value": 1}
    host.is_stored = False
    outcome = run_tool("kafka", {**call, "auth": given(auth)}, host=host, timeout=20)
    assert outcome.status == "error" and "stored credential" in outcome.error.message, outcome
    host.is_stored = True
    assert run_tool("kafka", {**call, "auth": "events"}, host=host, timeout=20).status == "ok"


def test_values_that_are_no_json_or_no_text(run, cluster):
    topic = cluster.new_topic()
    cluster.produce(topic, b"\xff\0", "NaN", '{"x": 1e400}', "", None)
    for format, values in (("json", ["/wA=", "NaN", '{"x": 1e400}', "", None]), ("text", ["/wA=", "NaN"])):
        found = run("consume", topic=topic, format=format, limit=len(values)).data["messages"]
        assert [row["value"] for row in found] == values


@pytest.fixture(scope="module")
def tls_ports(cluster, tmp_path_factory):
    """The mock cluster behind TLS: the authority and the port for the right and for another name."""
    folders = tmp_path_factory.mktemp("right"), tmp_path_factory.mktemp("other")
    right, other = certificates.create(folders[0]), certificates.create(folders[1], "DNS:elsewhere.example")
    host, port = cluster.servers.rsplit(":", 1)
    with tls_proxy(right, (host, int(port))) as first, tls_proxy(other, (host, int(port))) as second:
        yield {"right": (str(right.ca), first), "other": (str(other.ca), second)}


@pytest.mark.parametrize(
    ("fields", "server", "said"),
    [
        ({"ca": "right"}, "right", None),
        ({"tls": "true", "verify": "false"}, "right", None),
        ({"tls": True}, "right", "certificate verify failed"),
        ({"ca": "other"}, "right", "certificate verify failed"),
        ({"ca": "other"}, "other", "certificate verify failed"),
    ],
    ids=["authority", "not verified", "unknown authority", "other authority", "other name"],
)
def test_the_certificate_of_a_broker_is_checked(cluster, tls_ports, fields, server, said):
    """The first broker only: the mock cluster advertises its address without TLS."""
    topic = cluster.new_topic()
    given = {name: tls_ports[value][0] if name == "ca" else value for name, value in fields.items()}
    options = client_settings({"servers": f"127.0.0.1:{tls_ports[server][1]}", **given})
    consumer = Consumer({**options, "group.id": "tls"})
    try:
        problem = None
        assert topic in check_cluster(consumer, options, topic, Timeout(connect=20 if said is None else 1)).topics
    except Exception as failure:
        problem = explain(failure)
    finally:
        consumer.close()
    if said is None:
        assert problem is None
    else:
        assert (problem.kind, said in problem.message) == ("connection", True)
        assert "check `tls`, `ca` and `verify` of the credential" in problem.message


def test_tls_as_text_is_what_it_says():
    assert "security.protocol" not in client_settings({"servers": "h:1", "tls": "false"})
    assert client_settings({"servers": "h:1", "tls": "true"})["security.protocol"] == "SSL"
