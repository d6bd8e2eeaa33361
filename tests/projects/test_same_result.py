"""A playbook gives the same result beside its files and from its bundle on a server."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

import pytest

from docs.generate.cookbook_pages import COOKBOOK, recipes
from tests.projects.conftest import write

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FAILING = {"saga.yaml", "cookbook/durable/saga.yaml", "cookbook/data/quality_gate.yaml"}
NEEDY = {COOKBOOK / one.file for section in recipes().values() for one in section if "needs" in one.entry}
PLAYBOOKS = sorted(
    file.relative_to(EXAMPLES).as_posix()
    for file in EXAMPLES.rglob("*.yaml")
    if b"kind: Playbook" in file.read_bytes()
    and not {"build"} & set(file.parts)
    and (
        "jobs" not in file.parts or "sql_models" in file.parts
    )  # the other jobs need servers and have tests of their own
    and not file.name.endswith(".test.yaml")
    and file not in NEEDY
)
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: same/{name}}}\n"


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch):
    """The API of the quickstart."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "quickstart"))
    from api import ShopServer

    server = ShopServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.url
    server.shutdown()
    server.server_close()
    sys.modules.pop("api")


def without_locators(value):
    """References without their locators, which have the id of the execution."""
    if isinstance(value, dict):
        return {key: without_locators(one) for key, one in value.items() if key != "locator"}
    return value


def outcomes(there, monkeypatch, name: str, *more: str):
    """The result beside the files, from a file sent to the server, and from the registered version."""
    sent = there("execute", name, "--json", *more)
    registered = there("register", name, "--json")
    assert registered.code == 0, registered.err
    run = there("execute", registered.json[0]["path"], "--json", *more)
    with monkeypatch.context() as local:
        local.delenv("NOETL_SERVER_URL")
        beside = there("run", name, "--json", *more)
    for one in (beside, sent, run):  # the place has the file of the playbook: absolute beside it
        if one.json["error"]:
            at = one.json["output"]["error"]["details"]["at"]
            assert "bundle:" not in at
    return [
        {"code": one.code, **{key: without_locators(one.json[key]) for key in ("status", "ctx", "path")}, "output": one.json["output"]["data"], "error": one.json["error"] and one.json["error"]["kind"]}
        for one in (beside, sent, run)
    ]  # fmt: skip


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_an_example_gives_the_same_result_on_a_server(there, folder, monkeypatch, shop, name):
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build", "plugin"))
    monkeypatch.chdir(folder / Path(name).parent)
    more = ["--set", f"api_url={shop}"] if name.startswith("quickstart") else []
    beside, sent, registered = outcomes(there, monkeypatch, Path(name).name, *more)
    assert beside["status"] == ("failed" if name in FAILING else "success")
    assert sent == beside
    assert registered == beside


TOOLS = {
    "python script": ("tool: {name: t, kind: python, script: {uri: lib/add.py}, input: {a: 2}}", {"lib/add.py": "result = a + 1\n"}),
    "python reads a file": (
        "tool: {name: t, kind: python, code: 'result = open(\"data/words.txt\").read()'}",
        {"data/words.txt": "hello\n"},
    ),
    "python module": (
        "tool: {name: t, kind: python, script: {uri: lib/main.py}}",
        {"lib/main.py": "from helper import greet\nresult = greet()\n", "helper.py": "def greet():\n    return 'hi'\n"},
    ),
    "shell reads a file": ("tool: {name: t, kind: shell, command: 'cat data.txt'}", {"data.txt": "shell data"}),
    "sql script": (
        "tool: {name: t, kind: duckdb, script: {uri: models/total.sql}}",
        {"models/total.sql": "SELECT sum(amount) AS total FROM read_csv('models/orders.csv')", "models/orders.csv": "amount\n1\n2\n"},
    ),
    "sql names a file": ("tool: {name: t, kind: duckdb, command: \"SELECT count(*) AS n FROM 'rows.csv'\"}", {"rows.csv": "a\n1\n2\n3\n"}),
    "child beside": ("tool: {name: t, kind: playbook, path: child}", {"child.yaml": HEAD.format(name="beside_child") + "workflow: [{step: start, tool: {name: c, kind: python, code: result = 7}}]\n"}),
    "child with a script": (
        "tool: {name: t, kind: playbook, path: parts/child.yaml}",
        {
            "parts/child.yaml": HEAD.format(name="child_with_script") + "workflow: [{step: start, tool: {name: c, kind: python, script: {uri: ../lib/seven.py}}}]\n",
            "lib/seven.py": "result = 7\n",
        },
    ),
    "a failing script": ("tool: {name: t, kind: python, script: {uri: bad.py}}", {"bad.py": "raise ValueError('no')\n"}),
    "a file that does not exist": ("tool: {name: t, kind: python, script: {uri: nowhere.py}}", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", TOOLS)
def test_named_files_travel(there, folder, monkeypatch, case):
    step, files = TOOLS[case]
    name = case.replace(" ", "_")
    text = HEAD.format(name=name) + f"workflow:\n  - step: start\n    {step}\n"
    write(folder, {"main.yaml": text, **files})
    beside, sent, registered = outcomes(there, monkeypatch, "main.yaml")
    assert sent == beside
    assert registered == beside
    expected = "failed" if case in ("a failing script", "a file that does not exist") else "success"
    assert beside["status"] == expected
