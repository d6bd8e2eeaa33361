"""`noetl.Client` and `noetl.AsyncClient` against a real server."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.servers import free_port
from noetl import AsyncClient, Client, InvalidPlaybook
from noetl.errors import AccessRefused, Conflict, NotFound, RequestRefused, StoreUnavailable
from tests.server.http.serving import Cluster

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "python.md"

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: client/{name}}}\n"
TWICE = HEAD.format(name="twice") + (
    "workload: {n: 1}\nworkflow:\n  - step: start\n"
    '    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = n * 2"}\n'
)
SLOW = (
    HEAD.format(name="slow")
    + 'workflow:\n  - step: start\n    tool: {kind: python, code: "import time; time.sleep(60)"}\n'
)
LARGE = (
    HEAD.format(name="large")
    + 'workflow:\n  - step: start\n    tool: {kind: python, code: "result = list(range(200000))"}\n'
)


@pytest.fixture
def client(cluster: Cluster):
    with Client(cluster.url, cluster.token) as client:
        yield client


def test_run_waits_and_returns_a_typed_result(client: Client):
    stored = client.register(TWICE)
    assert (stored.path, stored.version) == ("client/twice", 1)
    result = client.run("client/twice", {"n": 21}, timeout=30)
    assert (result.ok, result.data, result.path) == (True, 42, "client/twice")
    assert [step.step for step in result.steps] == ["start"]
    assert client.wait(result.execution_id, 0.001).data == 42  # it has ended: no time is needed
    assert client.playbook("client/twice").text == TWICE
    assert [each.path for each in client.playbooks("twice")] == ["client/twice"]


def test_the_same_key_starts_once(client: Client):
    client.register(TWICE)
    first = client.submit("client/twice", {"n": 1}, key="k-1")
    assert client.submit("client/twice", {"n": 1}, key="k-1") == first
    with pytest.raises(Conflict, match="another request"):
        client.submit("client/twice", {"n": 2}, key="k-1")


def test_follow_yields_every_event_of_the_log(client: Client):
    execution_id = client.submit(content=TWICE)
    followed = list(client.follow(execution_id))
    assert followed == list(client.events(execution_id))
    assert [event["seq"] for event in followed] == list(range(1, len(followed) + 1))
    assert list(client.follow(execution_id, after=5)) == followed[5:]
    assert client.state(execution_id, at=1)["seq"] == 1
    assert "succeeded" in client.why(execution_id)["summary"]


def test_waiting_too_long_is_a_timeout_and_running_too_long_is_cancelled(client: Client):
    execution_id = client.submit(content=SLOW)
    with pytest.raises(TimeoutError, match=r"0\.3 s"):
        client.wait(execution_id, 0.3)
    assert client.summary(execution_id).status == "running"
    assert client.cancel(execution_id, "enough").status == "cancelled"
    with pytest.raises(Conflict):
        client.cancel(execution_id)
    result = client.run(content=SLOW, timeout=0.3)
    assert (result.status, result.timed_out) == ("cancelled", True)


def test_an_execution_is_paused_resumed_and_run_again(client: Client):
    client.register(TWICE)
    execution_id = client.submit(content=SLOW)
    assert client.pause(execution_id).status == "paused"
    assert client.resume(execution_id).status == "running"
    client.cancel(execution_id)
    first = client.run("client/twice", {"n": 4})
    again = client.wait(client.rerun(first.execution_id), 30)
    assert again.data == 8
    assert again.execution_id != first.execution_id


def test_a_large_output_is_fetched(client: Client):
    assert client.run(content=LARGE, timeout=60).data == list(range(200000))


def test_lists_are_read_page_by_page(client: Client):
    ids = [client.run(content=TWICE).execution_id for _ in range(3)]
    assert [row.execution_id for row in client.executions(path="client/twice", limit=3)] == ids[::-1]
    everything = [row.execution_id for row in client.executions()]
    assert len(everything) == len(set(everything)) >= 3


def test_errors_are_the_exceptions_of_the_package(client: Client, cluster: Cluster):
    with pytest.raises(NotFound):
        client.summary("12345")
    with pytest.raises(NotFound):
        client.submit("client/missing")
    with pytest.raises(InvalidPlaybook) as caught:
        client.register("workflow: 7")
    assert caught.value.diagnostics[0].line == 1
    with pytest.raises(RequestRefused):
        client.submit()
    with Client(cluster.url, "noetl_wrong") as client, pytest.raises(AccessRefused, match="not know this token"):
        next(client.executions())
    with Client(cluster.url, "") as client, pytest.raises(AccessRefused, match="requires a token"):
        client.submit("x")


def test_an_unknown_option_is_a_type_error(client: Client):
    with pytest.raises(TypeError, match="timezone"):
        client.submit("client/twice", timezone="UTC")  # type: ignore[call-arg]


def test_an_unreachable_server_is_an_error_and_the_next_address_is_used(cluster: Cluster):
    closed = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(StoreUnavailable, match="connection refused"):
        Client(closed, "x").summary("1")
    with Client(f"{closed},{cluster.url}", cluster.token) as client:
        assert client.run(content=TWICE).ok
    with pytest.raises(RequestRefused, match="not a server address"):
        Client("ftp://example.org", "x")


def test_credential_values_are_never_returned(client: Client):
    client.set_credential("client_db", "postgres", {"password": "swordfish"})
    assert ("client_db", "postgres") in client.credentials()
    client.delete_credential("client_db")
    with pytest.raises(NotFound):
        client.delete_credential("client_db")


def test_the_programs_of_the_python_page_run(cluster: Cluster, tmp_path: Path):
    programs = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 2  # blocking and asynchronous
    environ = {**cluster.environ, "NOETL_TOKEN": cluster.token}
    for program in programs:
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60, env=environ)


# ── AsyncClient ─────────────────────────────────────────────────────────────────────────


def test_both_clients_have_the_same_methods_and_parameters():
    def methods(kind: type) -> dict[str, inspect.Signature]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(method) for name, method in found if not name.startswith("_")}

    blocking, asynchronous = methods(Client), methods(AsyncClient)
    assert blocking.keys() == asynchronous.keys()
    for name in blocking.keys() - {"follow", "follow_logs", "close"}:
        assert blocking[name].parameters == asynchronous[name].parameters, name


def test_runs_are_started_side_by_side_in_one_event_loop(cluster: Cluster):
    async def scenario() -> None:
        async with AsyncClient(cluster.url, cluster.token) as client:
            stored = await client.register(TWICE)
            assert stored.path == "client/twice"
            results = await asyncio.gather(*(client.run("client/twice", {"n": n}, timeout=60) for n in range(12)))
            assert [result.data for result in results] == [2 * n for n in range(12)]
            ids = {row.execution_id async for row in client.executions(path="client/twice", limit=12)}
            assert ids == {result.execution_id for result in results}
            assert (await client.run(content=LARGE, timeout=60)).data == list(range(200000))

    asyncio.run(scenario())


def test_an_asynchronously_followed_log_is_the_log(cluster: Cluster):
    async def scenario() -> None:
        async with AsyncClient(cluster.url, cluster.token) as client:
            execution_id = await client.submit(content=TWICE)
            followed = [event async for event in client.follow(execution_id)]
            assert followed == [event async for event in client.events(execution_id)]
            assert [event async for event in client.follow(execution_id, after=5)] == followed[5:]

    asyncio.run(scenario())


def test_an_asynchronous_wait_times_out_and_a_run_is_cancelled(cluster: Cluster):
    async def scenario() -> None:
        async with AsyncClient(cluster.url, cluster.token) as client:
            execution_id = await client.submit(content=SLOW)
            with pytest.raises(TimeoutError, match=r"0\.3 s"):
                await client.wait(execution_id, 0.3)
            assert (await client.cancel(execution_id)).status == "cancelled"
            with pytest.raises(Conflict):
                await client.cancel(execution_id)
            result = await client.run(content=SLOW, timeout=0.3)
            assert (result.status, result.timed_out) == ("cancelled", True)

    asyncio.run(scenario())


def test_errors_of_the_asynchronous_client_are_the_same_exceptions(cluster: Cluster):
    async def scenario() -> None:
        closed = f"http://127.0.0.1:{free_port()}"
        async with AsyncClient(closed, "x") as client:
            with pytest.raises(StoreUnavailable, match="connection refused"):
                await client.summary("1")
        async with AsyncClient(f"{closed},{cluster.url}", cluster.token) as client:
            with pytest.raises(NotFound):
                await client.summary("12345")
            with pytest.raises(InvalidPlaybook):
                await client.register("workflow: 7")
        async with AsyncClient(cluster.url, "noetl_wrong") as client:
            with pytest.raises(AccessRefused, match="not know this token"):
                await client.workers()

    asyncio.run(scenario())


def test_follow_survives_a_killed_server(tmp_path: Path):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_server()
        cluster.start_worker()
        with Client(cluster.url, cluster.token) as client:
            execution_id = client.submit(
                content=HEAD.format(name="waits")
                + "workflow:\n  - step: start\n    tool: {kind: python, code: 'import time; time.sleep(1.5)'}\n"
            )
            followed = client.follow(execution_id)
            first = [next(followed) for _ in range(4)]
            assert cluster.server is not None
            cluster.server.kill()
            cluster.server.wait()
            cluster.start_server()
            seen = [event["seq"] for event in [*first, *followed]]
            assert seen == [event["seq"] for event in client.events(execution_id)]
            assert client.wait(execution_id, 10).ok
    finally:
        cluster.stop()
