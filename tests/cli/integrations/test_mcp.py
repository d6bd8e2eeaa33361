"""`noetl mcp` with the client of the package `mcp` over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from noetl.runtime.printable import printable
from tests.server.http.serving import Cluster

pytestmark = pytest.mark.integration

GOOD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: orders}
keychain:
  - {name: shop, kind: env, var: SHOP_TOKEN}
workload: {amount: 2, password: hunter2}
workflow:
  - step: start
    tool:
      - name: pay
        kind: python
        input: {amount: "{{ workload.amount }}", key: "{{ keychain.shop }}"}
        code: 'result = {"paid": amount * 2, "key": key}'
        set: {ctx.password: "{{ workload.password }}"}
"""
SECRET = "s3cr3t-of-the-shop"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "good.yaml").write_text(GOOD)
    (tmp_path / "work" / "bad.yaml").write_text(GOOD.replace("tool:", "tol:"))
    (tmp_path / "outside.yaml").write_text(GOOD)
    return tmp_path / "work"


def with_assistant(folder: Path, work, *arguments: str, **settings: str) -> None:
    environment = {**os.environ, "NOETL_HOME": str(folder.parent / "home"), "SHOP_TOKEN": SECRET, **settings}
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "noetl", "mcp", *arguments], env=environment, cwd=str(folder)
    )

    async def session() -> None:
        async with Client(stdio_client(parameters)) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(session(), 110))


async def call(client: Client, tool: str, **arguments):
    """The structured result, or the text of an error."""
    result = await client.call_tool(tool, arguments)
    text = "".join(part.text for part in result.content)
    assert SECRET not in text
    return text if result.is_error else result.structured_content


def test_reading_tools_and_refusals(folder):
    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"validate", "explain", "plan", "executions", "why", "events"}
        assert all(tool.annotations.read_only_hint and tool.description for tool in tools.values())

        assert (await call(client, "validate", file="good.yaml"))["valid"] is True
        found = await call(client, "validate", content=GOOD.replace("tool:", "tol:"))
        assert (found["valid"], [one["code"] for one in found["diagnostics"]]) == (False, ["unknown-key"])
        assert found["diagnostics"][0]["line"] == 9
        assert "## Right" in (await call(client, "explain", code="unknown-key"))["text"]
        assert 'did you mean "unknown-key"?' in await call(client, "explain", code="unknown-ky")
        assert [step["step"] for step in (await call(client, "plan", file="good.yaml"))["steps"]] == ["start"]

        assert "has no key" in await call(client, "plan", file="bad.yaml")
        assert "not in the served folder" in await call(client, "validate", file="../outside.yaml")
        assert "no such file" in await call(client, "validate", file="missing.yaml")
        assert "give either" in await call(client, "validate")
        assert "no executions yet" in await call(client, "why")

    with_assistant(folder, work)


def test_run_why_and_events_mask_secrets(folder):
    async def work(client: Client) -> None:
        assert "run" in {tool.name for tool in (await client.list_tools()).tools}
        result = await call(client, "run", file="good.yaml", workload={"amount": 21})
        assert (result["status"], result["output"]["data"]["paid"]) == ("success", 42)
        assert result["ctx"]["password"] != "hunter2"
        assert (await call(client, "why"))["status"] == "success"
        first = await call(client, "events", limit=2)
        assert [event["seq"] for event in first["events"]] == [1, 2]
        rest = await call(client, "events", after=first["next"])
        assert (rest["events"][0]["seq"], rest["next"]) == (3, None)
        listed = (await call(client, "executions"))["executions"]
        assert [(one["execution_id"], one["status"]) for one in listed] == [(result["execution_id"], "success")]
        failed = await call(client, "run", content=GOOD.replace("result = {", "raise ValueError({"))
        assert isinstance(failed, str) or failed["status"] == "failed"
        assert "has no key" in await call(client, "run", file="bad.yaml")
        assert "give one of" in await call(client, "run")

    with_assistant(folder, work, "--allow-run")


def test_the_tools_use_a_server(folder):
    cluster = Cluster(folder.parent / "cluster", SHOP_TOKEN=SECRET)
    try:
        cluster.start_server()
        cluster.start_worker()
        assert cluster.ask("POST", "/api/catalog/register", {"content": GOOD})[0] in (200, 201)

        async def work(client: Client) -> None:
            assert (await call(client, "validate", file="bad.yaml"))["errors"] == 1
            ran = await call(client, "run", path="orders", workload={"amount": 4})
            assert (ran["status"], ran["output"]["data"]["paid"]) == ("success", 8)
            ran = await call(client, "run", file="good.yaml")
            assert (ran["status"], ran["output"]["data"]["paid"]) == ("success", 4)
            why = await call(client, "why", execution_id=ran["execution_id"])
            assert (why["execution_id"], why["status"]) == (ran["execution_id"], "success")
            assert (await call(client, "events", execution_id=ran["execution_id"]))["events"][0]["seq"] == 1
            assert len((await call(client, "executions"))["executions"]) == 2
            assert "missing" in await call(client, "run", path="missing")

        with_assistant(folder, work, "--allow-run", "--server", cluster.url, NOETL_TOKEN=cluster.token)

        async def refused(client: Client) -> None:
            assert "token" in await call(client, "executions")

        with_assistant(folder, refused, "--server", cluster.url, NOETL_TOKEN="wrong")
    finally:
        cluster.stop()


HIDDEN = r"\e]0;t\a\u202e\u200b\U000e0041"


def test_results_have_no_invisible_characters(folder):
    async def work(client: Client) -> None:
        assert "never instructions" in client.instructions
        content = GOOD.replace("amount: 2", f'amount: "{HIDDEN}"').replace(
            'result = {"paid"', "raise ValueError(amount)\n#"
        )
        content = (
            content.replace("'raise", '"raise')
            .replace("key}'", 'key}"')
            .replace('"key": ', "")
            .replace('{"paid"', "{paid")
        )
        texts = [
            await call(client, "run", content=content),
            await call(client, "why"),
            await call(client, "events"),
            await call(client, "validate", content=GOOD.replace("tool:", f'"{HIDDEN}":')),
            await call(client, "executions", path="\x1b\u202e\U000e0041"),
            await call(client, "explain", code="\x1b\u202e\U000e0041"),
            await call(client, "plan", file="\x1b\u202e\U000e0041"),
        ]
        shown = json.dumps(texts, ensure_ascii=False)
        assert printable(shown) == shown
        assert r"\\x1b]0;t" in shown

    with_assistant(folder, work, "--allow-run")
