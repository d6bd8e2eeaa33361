"""Class "address gate": no kind connects to an address that the network policy denies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from noetl.connections import gate_proxy as proxies
from noetl.connections.nats import _checked
from noetl.runtime.network_policy import AddressPolicy
from noetl.runtime.resources import close_loop_resources, per_loop
from noetl.testing import run_tool
from noetl.testing.tools import ToolHost, tool_call
from noetl.tools.registry import load
from noetl.worker.cache import Secrets, inline_entries
from noetl.worker.host import HostServices, TaskHost

POLICY = AddressPolicy(private=False)


class PolicyHost(ToolHost):
    """A host with the network policy of a server's workers."""

    def allows_address(self, address: str) -> bool:
        return POLICY.allows(address)

    def address_check(self, *places):
        return self.allows_address


class Listener:
    """A loopback server that counts connections and closes them."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.socket = socket.create_server((address, 0))
        self.port = self.socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection, contextlib.suppress(OSError):
                self.respond(connection)

    def respond(self, connection: socket.socket) -> None:
        """Send nothing."""


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.socket.close()


# PORT is the port of the listener. Spellings of one address: names, decimal and embedded forms.
HOSTS = ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::ffff:127.0.0.1]", "[::1]"]
POSTGRES = [{"auth": f"postgresql://u:p@{host}:PORT/d"} for host in HOSTS]
POSTGRES += [
    {"auth": {"host": "127.0.0.1", "port": "PORT", "user": "u", "database": "d"}},
    {"auth": {"host": "example.invalid", "hostaddr": "127.0.0.1", "port": "PORT", "user": "u", "database": "d"}},
    {"auth": "host=127.0.0.1,localhost port=PORT,PORT user=u dbname=d"},
    {"auth": "postgresql://u:p@/d?host=127.0.0.1&port=PORT"},
    {"auth": "postgresql://u:p@/d?host=/tmp&port=PORT"},
    {"auth": "postgresql://u:p@/d?host=@abstract"},
    {"auth": "service=other"},
    {"auth": {"dsn": "postgresql://u:p@192.0.2.1/d", "host": "127.0.0.1", "port": "PORT"}},
    {"auth": "host=169.254.169.254 port=80 user=u dbname=d"},
    {"auth": "host=10.0.0.1 port=80 user=u dbname=d"},
    {"host": "127.0.0.1", "port": "PORT", "user": "u", "database": "d"},
]
NATS = [{"url": f"nats://{host}:PORT"} for host in HOSTS]
NATS += [{"url": text} for text in ("127.0.0.1:PORT", "nats://u:p@127.0.0.1:PORT", "tls://127.0.0.1:PORT")]
NATS += [{"url": text} for text in ("ws://127.0.0.1:PORT", "wss://localhost:PORT", "nats://a@b@127.0.0.1:PORT")]
NATS += [{"auth": {"host": "127.0.0.1", "port": "PORT"}}, {"auth": {"servers": ["nats://127.0.0.1:PORT"]}}]
S3 = [{"uri": "s3://b/k", "auth": {"endpoint": f"http://{host}:PORT"}} for host in HOSTS]
S3 += [
    {"uri": "s3://b/k", "auth": {"endpoint_url": "http://127.0.0.1:PORT", "access_key": "a", "secret_key": "b"}},
    {"uri": "s3://b/k", "auth": {"endpoint": "127.0.0.1:PORT", "access_key": "a", "secret_key": "b"}},
    {"uri": "s3://b/k", "auth": {"endpoint": "https://user@127.0.0.1:PORT", "access_key": "a", "secret_key": "b"}},
    {"uri": "s3://b/k", "auth": {"region": "x@127.0.0.1:PORT/", "access_key": "a", "secret_key": "b"}},
    {"uri": "s3://127.0.0.1:PORT#/k", "auth": {"access_key": "a", "secret_key": "b"}},
    {"uri": "az://c/k", "auth": {"account": "a", "account_key": "YQ==", "endpoint": "http://127.0.0.1:PORT"}},
    {"uri": "az://c/k", "auth": {"account": "127.0.0.1:PORT/", "account_key": "YQ=="}},
    {"uri": "az://c/k", "auth": {"account": "a", "account_key": "YQ==", "use_emulator": "true"}},
    {
        "uri": "gs://b/k",
        "auth": {"service_account_key": {"gcs_base_url": "http://127.0.0.1:PORT", "private_key": "x"}, "region": "r"},
    },
    {
        "uri": "gs://b/k",
        "auth": {"service_account_key": {"token_uri": "http://127.0.0.1:PORT", "private_key": "x"}, "region": "r"},
    },
]
# Texts that a driver reads differently than Python's parser of URLs, or that only the driver can resolve.
UNUSUAL = [
    "http://127.0.0.1:PORT\\@1.1.1.1/", "http://1.1.1.1\\@127.0.0.1:PORT", "http:\\\\127.0.0.1:PORT", "http:/127.0.0.1:PORT",
    "http:///127.0.0.1:PORT", "http://127%2e0%2e0%2e1:PORT", "http://%31%32%37.0.0.1:PORT", "http://1.1.1.1%2elocalhost:PORT",
    "http://127.0.0.1.:PORT", "http://0177.0.0.1:PORT", "http://0x7f.0.0.1:PORT", "http://017700000001:PORT", "http://0:PORT",
    "http://127.0.1:PORT", "http://127。0。0。1:PORT", "http://①②⑦.⓪.⓪.①:PORT", "http://🯱🯲🯷.🯰.🯰.🯱:PORT",
    "http://１２７.0.0.1:PORT", "http://l\u00adocalhost:PORT", "http://localhoſt:PORT", "http://[::ffff:7f00:1]:PORT",
    "http://[0:0:0:0:0:ffff:127.0.0.1]:PORT", "http://[64:ff9b::127.0.0.1]:PORT", "http://[::127.0.0.1]:PORT", "http://[::]:PORT",
    "http://[::1%25lo]:PORT", "http://u:p@127.0.0.1:PORT", "http://1.1.1.1 @127.0.0.1:PORT", "http://127.0.0.1\t:PORT",
    "h\nttp://127.0.0.1:PORT", " http://127.0.0.1:PORT", "HTTP://LOCALHOST:PORT", "http://127.0.0.1:PORT#@1.1.1.1",
    "http://127.0.0.1:PORT?@1.1.1.1", "http://\x00127.0.0.1:PORT", "127.0.0.1:PORT/x@1.1.1.1", "//127.0.0.1:PORT",
    "http:127.0.0.1:PORT", "http://none.invalid:PORT",
]  # fmt: skip
POSTGRES += [
    {"auth": "host=127.0.0.1,1.1.1.1 hostaddr=,1.1.1.1 port=PORT,1 user=u dbname=d"},
    {"auth": "host=1.1.1.1,127.0.0.1 hostaddr=1.1.1.1, port=1,PORT user=u dbname=d"},
    {"auth": "host=,1.1.1.1 port=PORT user=u dbname=d"},
    {"auth": "host=1.1.1.1, port=PORT user=u dbname=d"},
    {"auth": "postgresql://u@1.1.1.1,:PORT/d"},
    {"auth": "postgresql://u@1.1.1.1,127.0.0.1:PORT/d"},
    {"auth": "postgresql://u@127.0.0.1%2c1.1.1.1:PORT/d"},
    {"auth": "postgresql://u@%31%32%37.0.0.1:PORT/d"},
    {"auth": "postgresql:///d?hostaddr=127.0.0.1&port=PORT&user=u"},
    {"auth": "host=::1%lo port=PORT user=u dbname=d"},
    {"auth": "host='127.0.0.1 ' port=PORT user=u dbname=d"},
    {"auth": "host=①②⑦.0.0.1 port=PORT user=u dbname=d"},
    {"auth": "host=127.0.0.1. port=PORT user=u dbname=d"},
    {"auth": {"host": "1.1.1.1,127.0.0.1", "port": "PORT", "user": "u", "database": "d"}},
    {"auth": {"dsn": "postgresql://u@1.1.1.1/d", "hostaddr": "127.0.0.1", "port": "PORT"}},
    {"auth": "host=1.1.1.1 user=u dbname=d oauth_issuer=http://127.0.0.1:PORT oauth_client_id=x"},
    {"auth": "host=1.1.1.1 user=u dbname=d sslkeylogfile=/tmp/keys"},
]
NATS += [
    {"url": text}
    for text in (
        "nats://1.1.1.1:1,nats://127.0.0.1:PORT", "nats://%31%32%37.0.0.1:PORT", "nats://1.1.1.1\\@127.0.0.1:PORT",
        "nats://127.0.0.1.:PORT", "nats://①②⑦.0.0.1:PORT", "nats://🯱🯲🯷.🯰.🯰.🯱:PORT", "nats://127.0.0.1:PORT/a@1.1.1.1",
        "ws://127.0.0.1.:PORT", "nats://0x7f.1:PORT", "nats://[::ffff:7f00:1]:PORT", "nats://[fe80::1%25lo]:PORT", "nats://0:PORT",
    )
]  # fmt: skip

DUCKDB = [
    "INSTALL httpfs", "LOAD httpfs", "FORCE INSTALL httpfs", "INSTALL httpfs FROM 'http://127.0.0.1:PORT'",
    "INSTALL x FROM community", "LOAD 'http://127.0.0.1:PORT/x.duckdb_extension'", "install /* a */ httpfs",
    "SET custom_extension_repository = 'http://127.0.0.1:PORT'", "SET s3_endpoint = '127.0.0.1:PORT'",
    "SET GLOBAL autoload_known_extensions = true", "PRAGMA http_proxy = '127.0.0.1:PORT'", "UPDATE EXTENSIONS",
    "SELECT * FROM read_csv('http://127.0.0.1:PORT/x.csv')", "SELECT * FROM 'http://127.0.0.1:PORT/x.parquet'",
    'SELECT * FROM "http://127.0.0.1:PORT/x.csv"', "SELECT * FROM read_csv($$http://127.0.0.1:PORT/x$$)",
    "SELECT * FROM read_text('https://localhost:PORT/')", "COPY (SELECT 1) TO 'http://127.0.0.1:PORT/x.csv'",
    "SELECT * FROM read_parquet('s3://b/k?s3_endpoint=127.0.0.1:PORT')", "ATTACH 'http://127.0.0.1:PORT/x.db' AS x",
    "ATTACH 'host=127.0.0.1 port=PORT' AS x (TYPE postgres)", "ATTACH '' AS x (TYPE postgres)",
    "ATTACH 'postgres:dbname=x' AS x", "ATTACH 'mysql:host=127.0.0.1' AS x", "ATTACH 'ducklake:postgres:host=127.0.0.1' AS x",
    "SELECT * FROM postgres_scan('host=127.0.0.1 port=PORT', 'a', 'b')",
    "SELECT * FROM postgres_query('hostaddr = 127.0.0.1 port=PORT', 'SELECT 1')",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b', ENDPOINT '127.0.0.1:PORT')",
    "CREATE OR REPLACE PERSISTENT SECRET s (TYPE postgres, HOST '127.0.0.1', PORT PORT)",
    "SELECT * FROM read_csv('abfss://c@127.0.0.1:PORT/x.csv')", "SELECT * FROM read_csv('http://[::ffff:127.0.0.1]:PORT/')",
]  # fmt: skip


def refused(kind: str, fields: dict, listener: Listener) -> str:
    """The message of an outcome, after which the listener must have no connection."""
    text = repr(fields).replace("PORT", str(listener.port))
    outcome = run_tool(kind, eval(text), host=PolicyHost(), spec={"timeout": 20})
    assert outcome.status == "error"
    assert listener.connections == 0
    return str(outcome.error.message)


@pytest.mark.parametrize("fields", POSTGRES, ids=repr)
def test_postgres(fields, listener):
    assert "network policy" in refused("postgres", {"query": "SELECT 1", **fields}, listener)


@pytest.mark.parametrize("fields", NATS, ids=repr)
def test_nats(fields, listener):
    assert "network policy" in refused("nats", {"action": "publish", "subject": "a", "data": "x", **fields}, listener)


def fields_of_store(kind: str, uri: str, auth: dict) -> dict:
    """The parameters of a call that reads an object."""
    if kind == "object":
        return {"action": "get", "path": uri, "auth": auth}
    if kind == "resolve":
        return {"uri": uri, "auth": auth}
    source = {"kind": "object", "uri": uri, "format": "csv", "auth": auth}
    return {"source": source, "target": {"kind": "object", "uri": "file:///tmp/unused.csv"}}


@pytest.mark.parametrize("fields", S3, ids=repr)
@pytest.mark.parametrize("kind", ["object", "resolve", "transfer"])
def test_object_stores(fields, kind, listener):
    message = refused(kind, fields_of_store(kind, fields["uri"], fields["auth"]), listener)
    assert "network policy" in message or "may have" in message or "not the name of a bucket" in message


@pytest.mark.parametrize("kind", ["object", "resolve", "transfer"])
@pytest.mark.parametrize("endpoint", UNUSUAL, ids=ascii)
def test_endpoints_that_drivers_read_differently(endpoint, kind, listener):
    auth = {"endpoint": endpoint, "skip_signature": "true"}
    message = refused(kind, fields_of_store(kind, "s3://b/k", auth), listener)
    assert "network policy" in message or "cannot be resolved" in message


@pytest.mark.parametrize("statement", DUCKDB)
def test_duckdb(statement, listener):
    assert "network policy" in refused("duckdb", {"query": statement}, listener)


def test_parameters_and_attached_databases_of_duckdb(listener):
    url = f"http://127.0.0.1:{listener.port}/x.csv"
    for fields in (
        {"query": "SELECT * FROM read_csv(?)", "params": [url]},
        {"query": "SELECT * FROM read_csv($u)", "params": {"u": url}},
        {"query": "SELECT 1", "attach": {"x": url}},
        {"query": "SELECT 1", "attach": {"x": {"file": f"host=127.0.0.1 port={listener.port}", "type": "postgres"}}},
    ):
        assert "network policy" in refused("duckdb", fields, listener)
    computed = {"query": f"SELECT * FROM read_csv('http:' || '//127.0.0.1:{listener.port}/x.csv')"}
    assert "httpfs" in refused("duckdb", computed, listener)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 AS a",
        "SET threads = 1",
        "LOAD json",
        "PRAGMA database_list",
        "SELECT 'a = b' AS a",
        "ATTACH ':memory:' AS x",
    ],
)
def test_local_statements_of_duckdb_are_executed(statement):
    assert run_tool("duckdb", {"query": statement}, host=PolicyHost()).status == "ok"


PLUGINS = [{"host": host, "port": "PORT"} for host in HOSTS]
PLUGINS += [{"auth": f"mysql://u:p@{host}:PORT/d"} for host in HOSTS]
PLUGINS += [
    {"auth": {"host": "127.0.0.1", "port": "PORT"}},
    {"auth": {"db_host": "127.0.0.1", "db_port": "PORT"}},
    {"auth": {"user": "root", "port": "PORT"}},
    {"user": "root", "password": "x"},
    {"auth": {"servers": ["127.0.0.1:PORT"]}},
    {"auth": {"bootstrap_servers": "example.com:9092,127.0.0.1:PORT"}},
    {"servers": "127.0.0.1:PORT,example.com:1"},
    {"config": {"bootstrap.servers": "127.0.0.1:PORT"}},
    {"auth": {"url": "redis+sentinel://example.com:1,127.0.0.1:PORT/0"}},
    {"url": "rediss://:p@localhost:PORT"},
    {"auth": "host=127.0.0.1 port=PORT dbname=d"},
    {"dsn": "jdbc:mysql://127.0.0.1:PORT/d"},
    {"dsn": "mysql://u@/d?unix_socket=/tmp/mysql.sock"},
    {"auth": {"unix_socket": "/tmp/mysql.sock"}},
    {"auth": {"url": "unix:///tmp/redis.sock"}},
    {"auth": {"options": {"proxy": "http://127.0.0.1:PORT"}}},
    {"endpoint": "http://169.254.169.254/latest"},
    {"hosts": ["tcp(127.0.0.1:PORT)"]},
    {"config": {"metadata.broker.list": "127.0.0.1:PORT"}},
    {"options": {"adbc.snowflake.sql.uri.host": "127.0.0.1"}},
    {"auth": {"credentials": '{"type": "service_account", "token_uri": "http:\\/\\/127.0.0.1:PORT"}'}},
    {"servers": "1.1.1.1:1,PLAINTEXT://127.0.0.1:PORT"},
    {"auth": {"url": "redis://1.1.1.1:1,redis://127.0.0.1:PORT"}},
    {"auth": {"servers": "1.1.1.1:1,u:p@127.0.0.1:PORT"}},
    {"auth": {"host": "u@127.0.0.1"}},
    {"auth": {"host": "127.0.0.1/x"}},
    {"auth": {"host": "127.0.0.1\\x"}},
    {"auth": {"host": "127.0.0.1:PORT/?x="}},
    {"url": "http://127.0.0.1:PORT\\@1.1.1.1/"},
    {"url": "http://127%2e0.0.1:PORT/"},
    {"url": "mysql://u@%6cocalhost:PORT/d"},
    {"endpoint": "①②⑦.0.0.1:PORT"},
    {"host": "127.0.0.1."},
    {"auth": {"broker": "[::1]:PORT"}},
    {"auth": {"dsn": "mysql://u@1.1.1.1/d?host=127.0.0.1"}},
    {"connection": {"proxy": "socks5://127.0.0.1:PORT"}},
]


@pytest.fixture
def plugin(monkeypatch):
    """A plug-in that counts its calls."""
    from noetl.core.model.tool import Field, ToolSpec
    from noetl.tool import ok
    from noetl.tools import registry

    class Plugin:
        SPEC = ToolSpec(kind="probe", doc="A plug-in.", fields={"auth": Field("any", "")}, open_fields=True)
        calls = 0

        async def run(self, call):
            self.calls += 1
            return ok({})

    made = Plugin()
    monkeypatch.setitem(registry._registry().specs, "probe", made.SPEC)
    monkeypatch.setitem(registry._registry().modules, "probe", made)
    return made


@pytest.mark.parametrize("fields", PLUGINS, ids=repr)
def test_plug_ins(fields, listener, plugin):
    assert "network policy" in refused("probe", fields, listener)
    assert plugin.calls == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"query": "SELECT 'http://127.0.0.1/'"},
        {"params": {"host": "127.0.0.1", "url": "http://localhost"}},
        {"rows": [{"host": "10.0.0.1"}]},
        {"value": "http://127.0.0.1:8080/"},
        {"host": "1.1.1.1", "port": 3306},
        {"auth": {"dsn": "mysql://u:p@1.1.1.1/d"}},
        {"auth": {"uri": "file:data.db"}},
        {"path": "/srv/data", "database": "x.duckdb", "auth": {"uri": "x.duckdb"}},
        {"uri": "s3://localhost/key"},
        {"address": "someone@example.com"},
        {"address": "10 Downing Street"},
        {"uri": "lake/orders"},
        {"uri": "mes données/x.db"},
        {"auth": {"dsn": "redis://default:p,a@1.1.1.1/0"}},
        {"auth": {"dsn": "redis://:p@1.1.1.1/0"}},
        {"auth": {"dsn": "mysql://10:p@1.1.1.1/0"}},
        {"server": "production"},
    ],
)
def test_data_of_plug_ins_is_not_an_address(fields, plugin):
    assert run_tool("probe", fields, host=PolicyHost()).status == "ok"
    assert plugin.calls == 1


SERVER_HOSTS = [
    "u@127.0.0.1",
    "127.0.0.1/",
    "127.0.0.1:80",
    "127.0.0.1?x",
    "a b",
    "127.0.0.1\\",
    "１２７.0.0.1",
    "a\nb",
    "%31.1.1.1",
]


@pytest.mark.parametrize("host", SERVER_HOSTS, ids=ascii)
def test_the_host_of_a_server_is_a_name_or_an_address(host):
    """Plug-ins build URLs of it."""
    from noetl.connections.auth import BadAuth
    from noetl.connections.server_fields import server_fields

    with pytest.raises(BadAuth, match="host name or an IP address"):
        asyncio.run(server_fields({"host": host, "user": "u"}, PolicyHost(), schemes=("mysql",)))


@pytest.mark.parametrize("side", ["source", "target"])
def test_connectors_of_plug_ins(side, listener):
    from noetl.core.model.connector import SourceSpec, TargetSpec
    from noetl.core.model.tool import ToolCall
    from noetl.errors import StoreUnavailable
    from noetl.tools.transfer.sources.plugin_source import PluginSource
    from noetl.tools.transfer.targets.plugin_target import PluginTarget
    from noetl.tools.transfer.transfer_plan import Plan

    async def read(call):
        raise AssertionError("called")
        yield

    call = ToolCall("transfer", {}, {}, PolicyHost(), "1", "s", "t", "r")
    fields = {"host": "127.0.0.1", "port": listener.port}

    async def scenario():
        if side == "source":
            source = PluginSource(call, SourceSpec("probe", "A source.", read, {}), fields, Plan(None, (), 10, None))
            await anext(source.batches())
        else:
            target = object.__new__(PluginTarget)
            target.call, target._target = call, object()
            target.plan = type("Plan", (), {"fields": fields, "plugin": TargetSpec("probe", "A target.", read, {})})
            await target.begin(None)

    with pytest.raises(StoreUnavailable, match="network policy"):
        asyncio.run(scenario())


def test_addresses_in_definitions_of_triggers(listener):
    """Operators add triggers; the server connects only to addresses that its policy allows, or that a credential has."""
    from noetl.server.scheduling.event_triggers import NatsTrigger
    from noetl.server.scheduling.sources import manager

    trigger = NatsTrigger(id="i", name="n", path="p", subject="s", url=f"nats://127.0.0.1:{listener.port}")
    problems = []
    recorded = asyncio.Event()

    class Triggers:
        async def get(self, kind, name):
            return trigger

        async def change(self, kind, name, **fields):
            problems.append(fields.get("problem"))
            recorded.set()

    class Deliveries:
        triggers = Triggers()

    class Clock:
        def now(self):
            return 0.0

    sources = manager.TriggerSources(Deliveries(), None, None, Clock(), allows=POLICY.allows)

    async def scenario():
        task = asyncio.create_task(sources._listen(trigger))
        await recorded.wait()
        task.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert "network policy" in problems[0]
    assert listener.connections == 0


def test_mail_and_http(listener):
    mail = {"to": "a@b.example", "subject": "x", "text": "y"}
    server = {"host": "localhost", "port": listener.port, "from": "a@b.example", "tls": "none"}
    assert "network policy" in refused("mail", {**mail, "auth": server}, listener)
    assert "network policy" in refused("http", {"url": f"http://localhost:{listener.port}/"}, listener)


def test_a_client_connects_to_the_checked_address_only():
    """The name is not resolved a second time, and servers that a server names are not used."""
    servers, options = asyncio.run(_checked(["nats://u:p@1.1.1.1:4222", "tls://[2606:4700::1111]"], POLICY.allows))
    assert servers == ["nats://u:p@1.1.1.1:4222", "tls://[2606:4700::1111]:4222"]
    assert options["allow_reconnect"] is False


def test_addresses_of_stored_credentials_are_the_choice_of_administrators():
    from noetl.core.model.playbook import KeychainEntry

    class Link:
        async def secrets(self, execution_id, names):
            return {name: {"host": f"{name}.internal", "user": "u"} for name in names}

    class Clock:
        def monotonic(self):
            return 0.0

    secrets = Secrets(Link(), "e", Clock())
    secrets.inline = inline_entries([KeychainEntry("inline", "static", {}), KeychainEntry("named", "credential", {})])
    asyncio.run(secrets.get(["stored", "named", "inline"]))
    host = TaskHost(("e", "s", "t", "r"), "", secrets, HostServices(None, POLICY), lambda counts: None)
    assert host.address_check("stored.internal") is None
    assert host.address_check("named.internal") is None
    assert host.address_check("inline.internal") is not None
    assert host.address_check("stored.internal", "127.0.0.1") is not None
    assert host.address_check() is not None
    unrestricted = TaskHost(("e", "s", "t", "r"), "", secrets, HostServices(None), lambda counts: None)
    assert unrestricted.address_check("127.0.0.1") is None


DENIED = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.88.99.1",
    "168.63.129.16",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:a9fe:a9fe",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "feff::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "100::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "3fff::1",
    "5f00::1",
    "[::1]",
    "127.0.0.1%lo",
    "1.2.3",
    "0x7f.1",
    "::ffff:168.63.129.16",
    "64:ff9b:1:7f00:0:100:808:808",  # 127.0.0.1 with the prefix of 48 bits, whatever follows
    "64:ff9b:1:0:7f:0:101:808",
    "2002:808:808::7f00:1",
    "2001:0:808:808::1",
]


@pytest.mark.parametrize("address", DENIED)
def test_special_addresses_are_denied_in_every_spelling(address):
    assert not POLICY.allows(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_allowed(address):
    assert POLICY.allows(address)


class Redirector(Listener):
    """A server of an allowed address that redirects every request to another one."""

    def __init__(self, location: str, status: int = 307) -> None:
        self._response = (
            f"HTTP/1.1 {status} R\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        super().__init__("127.0.0.2")

    def respond(self, connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(self._response.encode())


class NeighbourHost(PolicyHost):
    """A host whose policy allows one other address."""

    def allows_address(self, address: str) -> bool:
        return AddressPolicy(private=False, networks=("127.0.0.2/32",)).allows(address)


@pytest.mark.parametrize("kind", ["object", "resolve", "transfer"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "127.0.0.1."])
def test_redirects_of_object_stores(kind, status, host, listener):
    redirector = Redirector(f"http://{host}:{listener.port}/x", status)
    auth = {"endpoint": f"http://127.0.0.2:{redirector.port}", "skip_signature": "true"}
    outcome = run_tool(kind, fields_of_store(kind, "s3://b/k", auth), host=NeighbourHost(), spec={"timeout": 20})
    redirector.socket.close()
    assert outcome.status == "error"
    assert redirector.connections
    assert listener.connections == 0


def test_names_that_resolve_differently_the_second_time(monkeypatch, listener):
    """The first answer of the name server is allowed, the next ones are not."""
    asked = []

    async def answers(self, host, port, **others):
        asked.append(host)
        address = "127.0.0.2" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", answers)
    for kind, fields in (
        ("object", fields_of_store("object", "s3://b/k", {"endpoint": f"http://rebind.example:{listener.port}"})),
        ("nats", {"action": "publish", "subject": "a", "data": "x", "url": f"nats://rebind.example:{listener.port}"}),
        ("postgres", {"query": "SELECT 1", "auth": f"host=rebind.example port={listener.port} user=u dbname=d"}),
    ):
        asked.clear()
        outcome = run_tool(kind, fields, host=NeighbourHost(), spec={"timeout": 20})
        assert outcome.status == "error"
        assert asked
    assert listener.connections == 0


def test_a_key_file_of_a_service_account(tmp_path, listener):
    import json

    for name in ("gcs_base_url", "token_uri"):
        key = {
            name: f"http://127.0.0.1:{listener.port}",
            "private_key": "x",
            "client_email": "a",
            "private_key_id": "b",
        }
        (tmp_path / "key.json").write_text(json.dumps(key))
        auth = {"service_account_path": str(tmp_path / "key.json")}
        assert "network policy" in refused("object", fields_of_store("object", "gs://b/k", auth), listener)


PROXIED = [
    "CONNECT 127.0.0.1:PORT HTTP/1.1", "CONNECT localhost:PORT HTTP/1.1", "CONNECT [::1]:PORT HTTP/1.1", "CONNECT 0:PORT HTTP/1.1",
    "CONNECT u@127.0.0.1:PORT HTTP/1.1", "CONNECT 127.0.0.1.:PORT HTTP/1.1", "CONNECT 127.0.0.1:PORT\\@1.1.1.1 HTTP/1.1",
    "CONNECT [::ffff:7f00:1]:PORT HTTP/1.1", "CONNECT :PORT HTTP/1.1", "CONNECT  HTTP/1.1", "CONNECT /tmp/socket HTTP/1.1",
    "GET http://127.0.0.1:PORT/ HTTP/1.1", "GET http://1.1.1.1@127.0.0.1:PORT/ HTTP/1.1", "GET / HTTP/1.1", "GET //127.0.0.1:PORT/ HTTP/1.1",
    "GET http://127.0.0.1:PORT HTTP/1.0", "POST http://localhost:PORT/x?y HTTP/1.1", "GET https://127.0.0.1:PORT/ HTTP/1.1",
    "GET ftp://127.0.0.1:PORT/ HTTP/1.1", "GET http:\\\\127.0.0.1:PORT/ HTTP/1.1", "PRI * HTTP/2.0", "x", "GET http://①27.0.0.1:PORT/ HTTP/1.1",
]  # fmt: skip


@pytest.mark.parametrize("line", PROXIED, ids=ascii)
def test_requests_to_the_proxy(line, listener):
    from noetl.connections.gate_proxy import gate_proxy
    from noetl.runtime.resources import close_loop_resources

    async def scenario() -> bytes:
        proxy = await gate_proxy(POLICY.allows)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.rpartition(":")[2]))
        head = f"{line.replace('PORT', str(listener.port))}\r\nHost: 127.0.0.1:{listener.port}\r\n\r\n"
        writer.write(head.encode())
        answer = await reader.read()
        writer.close()
        await close_loop_resources()
        return answer

    assert asyncio.run(asyncio.wait_for(scenario(), 20)).split()[1] in (b"421", b"502")
    assert listener.connections == 0


def test_the_proxy_forwards_allowed_requests_and_tunnels():
    from noetl.connections.gate_proxy import gate_proxy
    from noetl.runtime.resources import close_loop_resources

    class Echo(Listener):
        def respond(self, connection):
            connection.sendall(b"got " + connection.recv(65536))

    echo = Echo("127.0.0.2")
    place = f"127.0.0.2:{echo.port}"

    async def exchange(*parts: bytes) -> bytes:
        proxy = await gate_proxy(NeighbourHost().allows_address)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.rpartition(":")[2]))
        answer = b""
        for part in parts:
            writer.write(part)
            answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await close_loop_resources()
        return answer

    request = (
        f"GET http://{place}/a?b HTTP/1.1\r\nHost: {place}\r\nProxy-Authorization: x\r\nConnection: keep-alive\r\n\r\n"
    )
    forwarded = asyncio.run(exchange(request.encode()))
    assert forwarded == f"got GET /a?b HTTP/1.1\r\nconnection: close\r\nHost: {place}\r\n\r\n".encode()
    tunnelled = asyncio.run(exchange(f"CONNECT {place} HTTP/1.1\r\n\r\n".encode(), b"hello\r\n\r\n"))
    assert tunnelled == b"got hello\r\n\r\n"
    echo.socket.close()


async def _status_of_tunnel(proxy: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.rpartition(":")[2]))
    writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
    status = (await reader.readline()).split()[1]
    writer.close()
    return status


def test_a_proxy_trusts_only_the_port_of_a_stored_endpoint_and_only_for_its_call() -> None:
    async def scenario() -> None:
        def denied(_: str) -> bool:
            return False

        async with proxies.trusting_proxy(denied, "http://127.0.0.1:9/bucket") as trusting:
            assert trusting is not None
            # Tried and refused by the system; denied by the policy.
            assert [await _status_of_tunnel(trusting, port) for port in (9, 10)] == [b"502", b"421"]
            others = await proxies.gate_proxy(denied)
            assert others is not None
            assert await _status_of_tunnel(others, 9) == b"421"
        with pytest.raises(ConnectionRefusedError):
            await _status_of_tunnel(trusting, 9)
        await per_loop(proxies.GateProxy, lambda: proxies.GateProxy(denied)).close()

    asyncio.run(scenario())


class StoredHost(PolicyHost):
    """A host whose credential `stored` names an endpoint that an administrator has chosen."""

    def address_check(self, *places):
        return None if places else self.allows_address


def test_calls_of_duckdb_do_not_share_the_proxy_of_a_stored_endpoint(monkeypatch, tmp_path) -> None:
    """Settings belong to the open database, which calls of other playbooks use too."""

    async def no_secret(self, cursor, config) -> None:
        assert (config is not None) == ("auth" in self.call.input)  # its type is in an extension

    monkeypatch.setattr("noetl.tools.duckdb.task._Task._create_secret", no_secret)
    host = StoredHost(folder=tmp_path, credentials={"stored": {"endpoint": "http://127.0.0.1:9"}})
    query = "SELECT current_setting('http_proxy') AS proxy, count(*) FROM range(1000000) -- s3://bucket"

    async def scenario() -> None:
        async def proxy(**fields) -> str:
            call = tool_call("duckdb", {"file": "x.db", "query": query, **fields}, host=host)
            outcome = await load("duckdb")(call)
            assert outcome.status == "ok", outcome.error
            return outcome.data["rows"][0]["proxy"]

        usual = await proxies.gate_proxy(host.allows_address)
        found = await asyncio.gather(*(proxy(), proxy(auth="stored"), proxy(), proxy(auth="stored"), proxy()))
        assert [each == usual for each in found] == [True, False, True, False, True]
        assert found[1] != found[3]
        await close_loop_resources()

    asyncio.run(scenario())
