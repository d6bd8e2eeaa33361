"""A tool kind in a package of its own needs `noetl.tool` and nothing else, and the imports of 0.1 still work."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.tool import PLUGIN_KINDS, PLUGIN_SIDES, install_hint

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
CONNECTOR = ROOT / "examples" / "connector"
PLUGINS = [EXAMPLE, CONNECTOR, *sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))]
OURS = PLUGINS[2:]
GROUPS = {"noetl.tools", "noetl.sources", "noetl.targets", "noetl.triggers", "noetl.runtimes"}
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: sample}\nworkflow:\n"

# The module of docs/howto/add-a-tool-kind.md as it was in 0.1, with a connection that calls share.
OLD_PLUGIN = '''
"""Publish to an MQTT broker."""

from noetl.drivers.lifetime import shared
from noetl.model.outcome import Outcome, error, ok
from noetl.model.tool import Field, ToolCall, ToolSpec

SPEC = ToolSpec(
    kind="mqtt",
    doc="Publishes a message.",
    fields={
        "topic": Field("string", "Where to.", required=True),
        "message": Field("any", "What."),
        "auth": Field("string", "The broker's credential."),
    },
    extra=None,
    helpers={"mqtt": {"qos": None}},
)


async def run(call: ToolCall) -> Outcome:
    if not call.input.get("message"):
        return error("connection", "nothing to publish")
    published = shared("mqtt", list)
    published.append(call.input["topic"])
    return ok({"published": len(published)}, mqtt={"qos": 0})
'''


def python(*words: str, path: Path | str = "", home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with `path` before the repository on its path."""
    places = os.pathsep.join(str(place) for place in (path, ROOT) if place)
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": places, "NOETL_HOME": str(home), **environ},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=110,
    )


def imports(file: Path) -> Iterator[str]:
    """The modules that a file imports, also with `import_module("...")`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            if node.module == "noetl":
                yield from (f"noetl.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (word.value for word in node.args if isinstance(word, ast.Constant))


def forbidden_imports(plugin: Path) -> list[str]:
    """Imports of `noetl` that a plug-in must not have."""
    found = []
    for file in sorted(plugin.rglob("*.py")):
        ours = {name for name in imports(file) if name.partition(".")[0] == "noetl"}
        allowed = {"noetl.tool", "noetl.testing"} if "tests" in file.parts else {"noetl.tool"}
        found += [f"{file.relative_to(plugin)}: {name}" for name in sorted(ours - allowed)]
    return found


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_a_plug_in_imports_the_sdk_and_nothing_else_of_noetl(plugin: Path):
    assert list(plugin.rglob("*.py"))
    assert forbidden_imports(plugin) == []


@pytest.mark.parametrize(
    ("file", "line", "name"),
    [
        ("task.py", "import noetl.connections.postgres", "noetl.connections.postgres"),
        ("task.py", "from noetl.core.model.outcome import ok", "noetl.core.model.outcome"),
        ("task.py", "from noetl import settings", "noetl.settings"),
        ("task.py", "def f():\n    from noetl.testing import run_tool", "noetl.testing"),
        ("task.py", "import importlib\nimportlib.import_module('noetl.worker')", "noetl.worker"),
        ("tests/test_task.py", "from noetl.tools.registry import load", "noetl.tools.registry"),
    ],
)
def test_a_forbidden_import_breaks_the_contract(tmp_path: Path, file: str, line: str, name: str):
    (tmp_path / "tests").mkdir()
    (tmp_path / file).write_text(f"from noetl.tool import ok\n{line}\n")
    assert forbidden_imports(tmp_path) == [f"{file}: {name}"]


@pytest.mark.parametrize("plugin", OURS, ids=lambda plugin: plugin.name)
def test_the_package_of_every_kind_is_known_without_it(plugin: Path):
    """A playbook with a kind whose package is not installed gets a warning that names the package."""
    points = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, known in (("tools", PLUGIN_KINDS), ("sources", PLUGIN_SIDES), ("targets", PLUGIN_SIDES)):
        for kind in points.get(f"noetl.{group}", {}):
            assert kind in known and f"noetl-{plugin.name}" in install_hint(kind)


@pytest.mark.parametrize("plugin", OURS, ids=lambda plugin: plugin.name)
def test_a_plug_in_has_the_parts_that_it_needs(plugin: Path):
    declared = tomllib.loads((plugin / "pyproject.toml").read_text())
    package, points = f"noetl_{plugin.name}", declared["project"]["entry-points"]
    assert declared["project"]["name"] == f"noetl-{plugin.name}"
    assert "noetl-engine>=0.2" in declared["project"]["dependencies"]
    assert declared["project"]["optional-dependencies"]["test"]
    assert declared["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [package]
    assert points.keys() <= GROUPS
    assert all(
        value.partition(":")[0].partition(".")[0] == package for group in points.values() for value in group.values()
    )
    assert list((plugin / "tests").glob("test_*.py"))


@pytest.mark.parametrize("plugin", OURS, ids=lambda plugin: plugin.name)
def test_the_readme_of_a_plug_in_is_complete(plugin: Path):
    """What it is tested against, how it is installed, and all fields as they are declared; the page has it too."""
    from docs.generate.plugin_pages import plugin_pages, plugin_readme

    readme = (plugin / "README.md").read_text()
    assert f"noetl-{plugin.name}" in readme and "pip install" in readme and "test" in readme.lower()
    points = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]["entry-points"]
    if {"noetl.sources", "noetl.targets"} & points.keys():
        assert all(f"\n## {title}\n" in readme for title in ("How it works", "Limits", "Tests"))
    assert readme == plugin_readme(plugin.name), "run `make docs`"
    page = ROOT / "docs" / "reference" / "plugins" / f"{plugin.name}.md"
    assert page.read_text() == plugin_pages()[page.name], "run `make docs`"


@pytest.mark.parametrize("plugin", OURS, ids=lambda plugin: plugin.name)
def test_a_plug_in_is_imported_without_its_driver(plugin: Path, tmp_path: Path):
    """Every command that reads the specs imports it, also where the driver is missing."""
    points = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]["entry-points"]
    allowed = "{'noetl', 'noetl_" + plugin.name + "', 'msgspec', 'typing_extensions'}"
    lines = ["import sys, importlib", "before = set(sys.modules)"]
    for value in {value for group in points.values() for value in group.values()}:
        module, _, name = value.partition(":")
        lines += [f"m = importlib.import_module({module!r})", f"assert hasattr(m, {name or 'SPEC'!r})"]
    lines += [
        "new = {n.partition('.')[0] for n in set(sys.modules) - before}",
        f"assert not new - {allowed} - set(sys.stdlib_module_names), new",
        "assert 'asyncio' not in sys.modules",
    ]
    ran = python("-c", "\n".join(lines), path=plugin, home=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("page", "example", "module"),
    [("add-a-tool-kind.md", EXAMPLE, "noetl_statsd"), ("write-a-connector.md", CONNECTOR, "noetl_maildir")],
)
def test_the_example_on_the_page_is_the_example_in_the_repository(page: str, example: Path, module: str):
    text = (ROOT / "docs" / "howto" / page).read_text()
    assert (example / module / "__init__.py").read_text() in text
    assert (example / "pyproject.toml").read_text() in text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the examples."""
    target = tmp_path_factory.mktemp("site")
    command = ["pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    ran = python("-m", *command, "--target", str(target), str(EXAMPLE), str(CONNECTOR), home=target)
    assert ran.returncode == 0, ran.stderr
    return target


def test_an_installed_plug_in_runs_in_a_playbook(site: Path, tmp_path: Path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        task = f"{{kind: statsd, auth: {{port: {server.getsockname()[1]}}}, metric: orders, value: 12}}"
        (tmp_path / "metric.yaml").write_text(f"{HEAD}  - step: start\n    tool: {task}\n")
        ran = python("-m", "noetl", "run", "metric.yaml", "--json", path=site, home=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert server.recv(100) == b"orders:12|c"
    assert json.loads(ran.stdout)["output"]["data"] == {"sent": "orders:12|c"}


def test_the_parameters_of_an_installed_plug_in_are_validated(site: Path, tmp_path: Path):
    (tmp_path / "metric.yaml").write_text(f"{HEAD}  - step: start\n    tool: {{kind: statsd, auth: metrics}}\n")
    ran = python("-m", "noetl", "validate", "metric.yaml", "--format", "json", path=site, home=tmp_path)
    assert [(one["code"], "metric" in one["message"]) for one in json.loads(ran.stdout)] == [
        ("missing-parameter", True)
    ]


@pytest.mark.parametrize("example", [EXAMPLE, CONNECTOR], ids=lambda example: example.name)
def test_the_tests_of_the_examples_pass(site: Path, tmp_path: Path, example: Path):
    ran = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(example / "tests"),
        path=site, home=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout


def old_plugin(site: Path, source: str) -> None:
    """Install a plug-in as pip does."""
    info = site / "noetl_mqtt-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "noetl_mqtt.py").write_text(source)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noetl-mqtt\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[noetl.tools]\nmqtt = noetl_mqtt\n")


def test_a_plug_in_with_the_imports_of_0_1_runs_and_warns(tmp_path: Path):
    old_plugin(tmp_path / "site", OLD_PLUGIN)
    (tmp_path / "old.yaml").write_text(f"{HEAD}  - step: start\n    tool: {{kind: mqtt, topic: t, message: m}}\n")
    ran = python(
        "-m", "noetl", "run", "old.yaml", "--json",
        path=tmp_path / "site", home=tmp_path, PYTHONWARNINGS="default::DeprecationWarning",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["output"]["data"] == {"published": 1}
    for name in ("noetl.drivers.lifetime", "noetl.model.outcome", "noetl.model.tool"):
        assert f"DeprecationWarning: {name} is deprecated and will be removed in 0.3; import noetl.tool" in ran.stderr


def test_every_old_module_path_leads_to_the_same_objects(tmp_path: Path):
    from noetl._deprecated import MOVED

    lines = ["import importlib, warnings", "warnings.simplefilter('ignore')"]
    for name, moved in MOVED.items():
        lines.append(f"old = importlib.import_module({name!r})")
        for old, new in moved.renamed.items():
            lines.append(
                f"assert any(getattr(importlib.import_module(m), {new!r}, 0) is old.{old} for m in {moved.modules})"
            )
    ran = python("-c", "\n".join(lines), home=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("code", "absent"), [("import noetl", "noetl._deprecated"), ("import noetl.tool", "asyncio")])
def test_what_is_not_used_is_not_imported(tmp_path: Path, code: str, absent: str):
    ran = python("-c", f"{code}\nimport sys\nassert {absent!r} not in sys.modules", home=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_every_public_name_of_the_sdk_is_documented():
    import noetl.tool

    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    missing: list[Any] = [name for name in noetl.tool.__all__ if f"`{name}" not in page]
    assert missing == []


@pytest.mark.parametrize("folder", OURS, ids=lambda folder: folder.name)
def test_a_plugin_can_be_distributed_by_itself(folder: Path) -> None:
    """With its licence, the least version of NoETL that it works with, and no links into the repository."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert project["license-files"] == ["LICENSE"]
    assert {"description", "readme", "keywords", "classifiers", "urls"} <= project.keys()
    assert "](../" not in (folder / "README.md").read_text()
