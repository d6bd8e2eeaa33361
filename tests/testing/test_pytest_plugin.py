"""The pytest plug-in, `noetl.run` with mocks, and the reports of `noetl test` for CI."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

import noetl

ROOT = Path(__file__).resolve().parents[2]
ORDERS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: orders}
keychain: [{name: shop, kind: credential}]
workload: {day: sunday}
workflow:
  - step: fetch
    tool: {name: get, kind: http, url: "https://shop.example/{{ workload.day }}", auth: shop, spec: {timeout: 5}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {name: total, kind: python, input: {rows: "{{ fetch.rows }}"}, code: "result = sum(rows)"}
"""
TESTS = """\
secrets: {shop: {token: x}}
tests:
  - name: adds up
    mocks: {fetch.get: {data: {rows: [3, 4]}}}
    expect: {output: 7}
  - name: is wrong
    mocks: {fetch.get: {data: {rows: [1]}}}
    expect: {output: 7}
"""
PYTHON = """\
def test_orders(noetl_playbook):
    ran = noetl_playbook("orders.yaml", {"day": "monday"}, mocks={"get": {"data": {"rows": [1, 2]}}}, secrets={"shop": {"token": "x"}})
    assert (ran.status, ran.data, ran.order) == ("success", 3, ["fetch", "end"])
    assert ran.calls_of("get")[0]["url"] == "https://shop.example/monday"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "orders.yaml").write_text(ORDERS)
    (tmp_path / "orders.test.yaml").write_text(TESTS)
    (tmp_path / "test_orders.py").write_text(PYTHON)
    (tmp_path / "other.test.yaml").write_text("a: 1\n")
    return tmp_path


def run(project: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "NOETL_HOME": str(project / "home"), "HOME": str(project)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=project, env={**env, **environ}, capture_output=True, text=True, timeout=100)


def test_pytest_collects_test_files_and_has_the_fixture(project: Path):
    ran = run(
        project, "pytest", "-q", "-p", "no:noetl", "-p", "noetl.testing.pytest_plugin", "-p", "no:cacheprovider", "-rA"
    )
    assert ran.returncode == 1, ran.stdout
    assert "PASSED orders.test.yaml::adds up" in ran.stdout
    assert "FAILED orders.test.yaml::is wrong" in ran.stdout
    assert "output: expected 7, got 1" in ran.stdout
    assert "PASSED test_orders.py::test_orders" in ran.stdout
    assert "Traceback" not in ran.stdout


def test_the_plug_in_is_registered():
    from importlib.metadata import distribution

    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nnoetl = "noetl.testing.pytest_plugin"' in text
    assert distribution("noetl-engine")


def test_run_takes_mocks(project: Path):
    mocks = {"fetch.get": {"data": {"rows": [5, 6]}}}
    result = noetl.run(project / "orders.yaml", {"day": "monday"}, mocks=mocks, secrets={"shop": {"token": "x"}})
    assert (result.status, result.data) == ("success", 11)
    failed = noetl.run(ORDERS, mocks={"get": {"error": {"kind": "timeout", "message": "late"}}}, secrets={"shop": {}})
    assert (failed.status, failed.error["kind"]) == ("failed", "timeout")


def test_test_writes_junit_and_annotations(project: Path):
    (project / "other.test.yaml").unlink()
    ran = run(project, "noetl.clictl", "test", "--junit", "build/junit.xml", GITHUB_ACTIONS="true")
    assert ran.returncode == 1, ran.stderr
    assert "::error file=orders.test.yaml,line=6::is wrong: output: expected 7, got 1" in ran.stderr
    suites = ElementTree.parse(project / "build" / "junit.xml").getroot()
    (suite,) = suites
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert [case.get("name") for case in suite] == ["adds up", "is wrong"]
    assert suite[1][0].get("message") == "output: expected 7, got 1"
    assert "::error" not in run(project, "noetl.clictl", "test").stderr


def test_a_broken_test_file_is_in_the_report(project: Path):
    ran = run(project, "noetl.clictl", "test", "--junit", "junit.xml")
    assert ran.returncode == 3
    suites = ElementTree.parse(project / "junit.xml").getroot()
    assert [suite.get("errors") for suite in suites if suite.get("name") == "other.test.yaml"] == ["1"]


def test_the_commands_of_the_github_workflow_run(tmp_path: Path):
    """Those of the job `check`, in a new project."""
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "playbooks.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["check"]["steps"] if "run" in step]
    assert commands[0] == "pip install noetl-engine"
    assert run(tmp_path, "noetl", "new", "shop", "--template", "basic").returncode == 0
    for command in commands[1:]:
        program, *words = shlex.split(command)
        ran = run(tmp_path / "shop", program, *words, GITHUB_ACTIONS="true")
        assert (program, ran.returncode) == ("noetl", 0), ran.stdout + ran.stderr
    uploaded = next(
        step["with"]["path"] for step in workflow["jobs"]["check"]["steps"] if "upload" in step.get("uses", "")
    )
    assert (tmp_path / "shop" / uploaded).is_file()


PARENT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: parent}
workflow:
  - step: regions
    loop: {in: "{{ ['north', 'south'] }}", iterator: name, spec: {mode: sequential}}
    tool:
      - {name: load, kind: playbook, path: child.yaml, payload: {region: "{{ iter.name }}"}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: python, input: {rows: "{{ regions.results }}"}, code: "result = rows"}
"""
CHILD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: child}
workload: {region: none}
workflow:
  - step: fetch
    tool: {name: get, kind: http, url: "https://shop.example/{{ workload.region }}", spec: {timeout: 5}}
"""


@pytest.fixture
def family(tmp_path: Path) -> Path:
    (tmp_path / "parent.yaml").write_text(PARENT)
    (tmp_path / "child.yaml").write_text(CHILD)
    return tmp_path / "parent.yaml"


@pytest.mark.parametrize("name", ["regions.load", "load", "regions", "playbook:child.yaml", "kind:playbook"])
def test_a_child_playbook_is_mocked(family: Path, name: str):
    (family.parent / "child.yaml").unlink()  # the mock replaces it
    result = noetl.run(family, mocks={name: {"data": "{{ input.payload.region }} rows"}})
    assert (result.status, result.data) == ("success", ["north rows", "south rows"])


def test_the_tools_of_a_child_playbook_are_mocked(family: Path):
    result = noetl.run(family, mocks={"fetch.get": {"data": "{{ workload.region }}"}})
    assert (result.status, [row["data"] for row in result.data]) == ("success", ["north", "south"])


def test_a_mocked_child_can_fail_and_calls_are_counted(family: Path):
    failure = {"error": {"kind": "not_found", "message": "no such region"}}
    result = noetl.run(family, mocks={"load": {"sequence": [{"data": 1}, failure]}})
    assert (result.status, result.error["kind"]) == ("failed", "not_found")
    (family.parent / "parent.test.yaml").write_text("""\
tests:
  - name: both regions
    mocks: {load: {data: 1}}
    expect: {output: [1, 1], calls: {load: [{path: child.yaml, payload: {region: north}}, {payload: {region: south}}]}}
  - name: a wrong template
    mocks: {load: "{{ nothing.here }}"}
    expect: {status: failed, error: "mocks.load"}
""")
    ran = run(family.parent, "noetl.clictl", "test")
    assert ran.returncode == 0, ran.stdout + ran.stderr
