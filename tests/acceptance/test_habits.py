"""What playbooks of the original NoETL rely on: each case of `habits/` is a small playbook and what it must give.

A case has parts of a playbook (`workload`, `keychain`, `executor`, `workbook`, `workflow`; or `tool`, the tasks of its
only step), and: `files` beside it, the request's `payload`, `legacy`, `status` (default `success`), `data` (the output;
a mapping may have more keys), `mentions` (texts in the error), `warns` (codes of diagnostics),
`refused` (texts in the errors of the validator).
`workload.api` and `workload.pg` are the addresses of a real HTTP API and a real database where a case names them;
`ctx` is a part of the last `ctx`, `events` the number of events by name.
`credentials: {name: prefix}` stores the fields of the database as credentials, their names with the prefix.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

import noetl
from noetl.core.language.rewrite.format import format_text
from noetl.core.language.rewrite.migrate.to_canonical import migrate
from noetl.embedded import open_local
from noetl.secrets.keychain import InstalledCredentials
from noetl.tools.registry import specs
from tests.e2e.api import serving
from tests.e2e.cases import assert_part
from tests.server.http.serving import Cluster

HERE = Path(__file__).parent
PARTS = ("vars", "keychain", "executor", "workload", "workbook", "workflow")
CASES: dict[str, dict[str, Any]] = {}
for _file in sorted((HERE / "habits").glob("*.yml")):
    for _name, _case in yaml.load(_file.read_text(), yaml.CSafeLoader).items():
        CASES[f"{_file.stem}/{_name}"] = _case


def playbook(name: str, case: dict[str, Any]) -> str:
    """The case's playbook as text."""
    document = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": name.replace("/", "_")}}
    document |= {part: case[part] for part in PARTS if part in case}
    if "tool" in case:
        document["workflow"] = [{"step": "start", "tool": case["tool"]}]
    return yaml.safe_dump(document, sort_keys=False, width=1000)


@pytest.mark.parametrize("name", CASES)
def test_habit(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    check_case(name, CASES[name], tmp_path, request)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "refused" not in case])
def test_the_migrated_playbook_of_a_habit_is_valid_and_formatted(name: str) -> None:
    case = CASES[name]
    text = playbook(name, case)
    made = migrate(text, specs()).text
    assert [each.message for each in noetl.validate(made) if each.severity == "error"] == []
    assert made == text or format_text(made, specs()) == made
    codes = {each.code for each in noetl.validate(made)}
    assert "plugin-kind" in codes or not {code for code in codes if code.startswith("v10-")}


@pytest.fixture(scope="module")
def on_a_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a server with a worker made of each case that needs no files of its own: documents of executions by name."""
    cluster = Cluster(tmp_path_factory.mktemp("server"))
    cluster.start_server()
    cluster.start_worker()
    try:
        with serving() as api:
            yield dict(_execute(cluster, api))
    finally:
        cluster.stop()


def _execute(cluster: Cluster, api: str) -> Iterator[tuple[str, Any]]:
    started = {}
    for name in ON_A_SERVER:
        body = {"content": playbook(name, CASES[name]), "legacy": CASES[name].get("legacy", False)}
        body["payload"] = {
            **CASES[name].get("payload", {}),
            **({"api": api} if "workload.api" in body["content"] else {}),
        }
        started[name] = cluster.ask("POST", "/api/execute", body)
    for name, (status, document) in started.items():
        yield (
            name,
            cluster.finished(document["execution_id"], 120) if status < 300 else {"status": "failed", **document},
        )


ON_A_SERVER = [
    name
    for name, case in CASES.items()
    if not {"files", "credentials", "refused"} & case.keys()
    and "workload.pg" not in playbook(name, case)
    and not name.endswith("_is_stored")  # whose output is not in the document
]


@pytest.mark.parametrize("name", ON_A_SERVER)
def test_habit_on_a_server(name: str, on_a_server: dict[str, Any]) -> None:
    case, document = CASES[name], on_a_server[name]
    assert document["status"] == case.get("status", "success"), document.get("error")
    if "reference_first: true" in playbook(name, case):
        assert document["output"]["ref"] and document["output"]["data"] is None
    elif "data" in case:
        assert_part(case["data"], document["output"]["data"], "data")
    if "ctx" in case:
        assert_part(case["ctx"], document["ctx"], "ctx")
    for part in case.get("mentions", ()):
        assert part in str(document.get("error", document))


def check_case(name: str, case: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Validate and run the playbook of a case, and compare."""
    text = playbook(name, case)
    file = tmp_path / "playbook.yaml"
    file.write_text(text)
    for path, content in case.get("files", {}).items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    legacy = case.get("legacy", False)
    found = noetl.validate(text, legacy=legacy)
    assert set(case.get("warns", ())) <= {each.code for each in found}
    errors = " ".join(f"{each.message} {each.hint}" for each in found if each.severity == "error")
    if "refused" in case:
        assert errors and all(part in errors for part in case["refused"]), errors
        return
    assert errors == ""
    payload = dict(case.get("payload", {}))
    home = tmp_path / "home"
    if "workload.pg" in text or "credentials" in case:
        payload["pg"] = request.getfixturevalue("database")
        asyncio.run(_store(case.get("credentials", {}), payload["pg"], home))
    with serving() as api:
        if "workload.api" in text:
            payload["api"] = api
        result, events = asyncio.run(_run(file, payload, home, legacy))
    assert result.status == case.get("status", "success"), (result.error or {}).get("message")
    if "data" in case:
        assert_part(case["data"], result.data, "data")
    if "ctx" in case:
        assert_part(case["ctx"], result.ctx, "ctx")
    for part in case.get("mentions", ()):
        assert part in str(result.error)
    for event, count in case.get("events", {}).items():
        assert events[event] == count, event


async def _store(prefixes: dict[str, str], dsn: str, home: Path) -> None:
    given = conninfo_to_dict(dsn)
    fields = {"host": given["host"], "port": given["port"], "user": given["user"], "name": given["dbname"]}
    fields["password"] = given.get("password", "")
    for name, prefix in prefixes.items():
        credentials = InstalledCredentials(home)
        named = {prefix + key if prefix or key != "name" else "database": value for key, value in fields.items()}
        await credentials.set(name, "postgres", named)
        await credentials.close()


async def _run(file: Path, payload: dict[str, Any], home: Path, legacy: bool) -> tuple[Any, Counter[str]]:
    async with await open_local(home=home) as engine:
        result = await engine.run(file, payload, timeout=60, legacy=legacy)
        events = await engine.orchestrator.events(result.execution_id)
        return await engine.hydrated(result), Counter(each.body.NAME for each in events)


def test_the_page_of_habits_names_every_case() -> None:
    page = (HERE.parents[1] / "docs" / "reference" / "habits.md").read_text()
    named = {
        f"{row[0]}/{case}"
        for row in re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", page, re.M)
        for case in re.findall(r"`(\w+)`", row[1])
    }
    assert named == set(CASES)
