"""Class "output of commands": every command escapes control, OSC and bidirectional characters of the data that it shows.

`CALLS` has calls of every command with hostile data: stored by a server before, given as arguments, or read from files. A
command that is not in the table fails the test.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import noetl.cli
from noetl.cli import app
from tests.security.test_printing import commands, is_safe
from tests.server.http.serving import Cluster

pytestmark = pytest.mark.integration

EVIL = "\x1b]0;title\x07\u202eevil\x9b2J"
YAML_EVIL = r"\e]0;title\a\u202eevil\x9b2J"
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: evil, path: evil, description: "EVIL"}
workload: {text: "EVIL", day: x}
workflow:
  - step: start
    tool:
      - name: prints
        kind: python
        input: {text: "{{ workload.text }}"}
        code: |
          import sys
          print(text)
          print(text, file=sys.stderr)
          result = {"text": text, text: [text]}
        set: {ctx.text: "{{ output.data.text }}"}
      - name: fails
        kind: python
        input: {text: "{{ workload.text }}"}
        code: raise ValueError(text)
        spec: {policy: {rules: [{else: {then: {do: continue}}}]}}
    next: {arcs: [{step: ask}]}
  - step: ask
    tool: {kind: wait, signal: answer, message: "{{ workload.text }}", timeout: 600}
""".replace("EVIL", YAML_EVIL)
FAILING = PLAYBOOK.replace("name: evil, path: evil", "name: fails, path: fails").replace("do: continue", "do: fail")
BROKEN = PLAYBOOK.replace("kind: python", 'kind: "EVIL"'.replace("EVIL", YAML_EVIL)).replace("next:", f'"{YAML_EVIL}":')

# A: an execution that waits, F: one that failed, E: hostile text; files: good.yaml, broken.yaml, schema.json.
CALLS: dict[str, list[list[str]]] = {
    "run": [["good.yaml", "--timeout", "5"], ["failing.yaml"], ["failing.yaml", "--json"], ["broken.yaml"], ["E"]],
    "validate": [["broken.yaml"], ["broken.yaml", "--format", "json"], ["broken.yaml", "--format", "github"], ["E"]],
    "fmt": [["--check", "broken.yaml"], ["E"]],
    "migrate": [["broken.yaml"], ["good.yaml", "--diff"], ["E"]],
    "plan": [["good.yaml"], ["good.yaml", "--json"], ["broken.yaml"]],
    "graph": [["broken.yaml"], ["E"]],
    "schema list": [[], ["--json"]],
    "schema register": [["evil", "schema.json"], ["E", "schema.json"], ["x", "E"]],
    "schema show": [["evil"], ["E"]],
    "test": [["evil.test.yaml"], ["E"]],
    "lsp": [["E"]],
    "mcp": [["--root", "E"], ["E"]],
    "executions": [[], ["--json"], ["--path", "E"]],
    "status": [["A"], ["F"], ["F", "--json"], ["E"]],
    "events": [["A"], ["F", "--json"], ["E"]],
    "logs": [["A"], ["F"], ["F", "--json"], ["E"]],
    "replay": [["A"], ["F", "--json"], ["E"]],
    "query": [
        ["A"],
        ["A", "select 1"],
        ["F", "E"],
        ["E", "select 1"],
    ],
    "why": [["A"], ["F"], ["F", "--json"], ["E"]],
    "execute": [["fails", "--wait"], ["E"], ["fails", "--set", "text=E", "--wait", "--json"]],
    "cancel": [["E"], ["F"]],
    "pause": [["E"], ["F"]],
    "resume": [["E"], ["F"]],
    "signal": [["A", "E"], ["E", "answer"]],
    "inbox": [[], ["--json"]],
    "rerun": [["F", "--from", "E"], ["E"]],
    "fork": [["F", "--at", "3", "--set", "text=E"], ["E", "--at", "1"]],
    "compare": [["A", "F"], ["A", "F", "--json"], ["E", "F"]],
    "backfill start": [
        ["fails", "--from", "E", "--to", "2024-01-02"],
        ["E", "--from", "2024-01-01", "--to", "2024-01-02"],
    ],
    "backfill list": [[], ["--json"]],
    "backfill show": [["E"]],
    "backfill pause": [["E"]],
    "backfill resume": [["E"]],
    "backfill retry": [["E"]],
    "backfill cancel": [["E"]],
    "new": [["E"], ["x", "--template", "E"]],
    "apply": [["project"], ["project", "--dry-run"], ["E"]],
    "diff": [["project"], ["E"]],
    "register": [["good.yaml"], ["broken.yaml"], ["E"]],
    "catalog list": [[], ["--json"]],
    "catalog show": [["E"]],
    "schedule add": [["evil", "--cron", "0 0 1 1 *", "--name", "evil", "--set", "text=E"], ["evil", "--cron", "E"]],
    "schedule edit": [["evil", "--cron", "E"], ["E", "--cron", "0 0 1 1 *"]],
    "schedule list": [[], ["--json"]],
    "schedule show": [["evil"], ["evil", "--json"], ["E"]],
    "schedule next": [["evil"], ["E"]],
    "schedule pause": [["E"]],
    "schedule resume": [["E"]],
    "schedule run": [["E"]],
    "schedule remove": [["E"]],
    "webhook add": [["evil", "--name", "E"], ["E"]],
    "webhook call": [["E"]],
    "webhook list": [[], ["--json"]],
    "webhook remove": [["E"]],
    "trigger add": [["evil", "--name", "E", "--ended", "evil"], ["E"]],
    "trigger deliveries": [[], ["--json"]],
    "trigger list": [[], ["--json"]],
    "trigger show": [["E"]],
    "trigger pause": [["E"]],
    "trigger resume": [["E"]],
    "trigger remove": [["E"]],
    "trigger replay": [["E"]],
    "notify add": [["evil", "--on", "failed", "--http", "http://127.0.0.1:9/E"], ["E", "--on", "E"]],
    "notify list": [[], ["--json"]],
    "notify log": [[], ["--json"]],
    "notify show": [["evil"], ["E"]],
    "notify test": [["evil"], ["E"]],
    "notify remove": [["E"]],
    "limit set": [["pool", "E", "3"], ["E", "x", "1"]],
    "limit list": [[], ["--json"]],
    "limit show": [["pool", "E"]],
    "limit remove": [["pool", "E"]],
    "credential set": [["E", "--type", "generic", "--data", '{"a": 1}'], ["x", "--type", "E", "--data", "E"]],
    "credential list": [[], ["--json"]],
    "credential delete": [["E"]],
    "credential rotate": [["E"]],
    "token create": [["E", "--role", "viewer"], ["x", "--role", "E"]],
    "token list": [[], ["--json"]],
    "token revoke": [["E"]],
    "server start": [["--port", "E"]],
    "server status": [[]],
    "server stop": [["E"]],
    "worker start": [["--pool", "E", "--count", "E"]],
    "worker status": [[]],
    "worker stop": [["E"]],
    "worker scale": [["E"]],
    "dev": [["E"]],
    "state set": [["evil", "key=E"], ["E", "key=1"]],
    "state show": [["evil"], ["evil", "--json"], ["E"]],
    "state reset": [["E"]],
    "retention": [["--older-than", "E"], ["--dry-run"]],
    "backup": [["no/such/folder/E"]],
    "restore": [["E"]],
    "upgrade": [["--check"], ["E"]],
    "config show": [[], ["--origin"], ["--json"]],
    "doctor": [[], ["--json"]],
    "completion": [["E"]],
}
# Documents: unchanged in a pipe, escaped on a terminal.
PRINTED = 'FROM task."start.prints"'
DOCUMENTS: dict[str, list[list[str]]] = {
    "query": [["A", PRINTED, "--format", "csv"], ["A", PRINTED, "--format", "json"]],
    "migrate": [["good.yaml"], ["marked.yaml", "--diff"]],
    "graph": [["good.yaml", "--format", format] for format in ("mermaid", "dot", "svg", "json")],
    "catalog show": [["evil"]],
}

ATTEMPTS = {"test_a_command_escapes_what_it_shows": 2}  # at least, of each command


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, str], Path]]:
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")), NOETL_LOG_FORMAT="json")
    folder = Path(tmp_path_factory.mktemp("files"))
    files = {
        "good.yaml": PLAYBOOK,
        "failing.yaml": FAILING,
        "broken.yaml": BROKEN,
        "marked.yaml": PLAYBOOK + "# \u202eevil\u2066\u200b\n",
        "noetl.toml": 'log.format = "text"\n',
    }
    files["schema.json"] = '{"type": "object", "description": "\\u001b]0;t\\u0007"}'
    files["evil.test.yaml"] = f'playbook: "{YAML_EVIL}"\ntests: [{{name: "{YAML_EVIL}"}}]\n'
    (folder / "project").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "project/noetl.toml").write_text("[project]\nname = 'evil'\n")
    (folder / "project/good.yaml").write_text(PLAYBOOK.replace("path: evil", "path: other"))
    try:
        cluster.start_server()
        cluster.start_worker()
        ids = {"E": EVIL}
        for letter, text, status in (("A", PLAYBOOK, "waiting"), ("F", FAILING, "failed")):
            assert cluster.ask("POST", "/api/catalog/register", {"content": text})[0] in (200, 201)
            path = "evil" if letter == "A" else "fails"
            ids[letter] = cluster.ask("POST", "/api/execute", {"path": path})[1]["execution_id"]
            wait_for_status(cluster, ids[letter], status)
        cluster.ask("PUT", "/api/credentials/evil", {"type": "generic", "data": {"a": EVIL}})
        yield cluster, ids, folder
    finally:
        cluster.stop()


def wait_for_status(cluster: Cluster, execution_id: str, status: str) -> None:
    deadline = time.monotonic() + 60
    while cluster.ask("GET", f"/api/executions/{execution_id}")[1]["status"] != status:
        assert time.monotonic() < deadline, f"{execution_id} is not {status}"
        time.sleep(0.02)


def test_every_command_is_in_the_table():
    assert {" ".join(words) for words in commands()} == set(CALLS)


def written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content = stream.buffer
    assert isinstance(content, io.BytesIO)
    return content.getvalue().decode()


class TerminalText(io.StringIO):
    """Output to a terminal: commands have colors and live rows there."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\r")  # styles and cursor of the commands themselves


@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("name", list(CALLS))
def test_a_command_escapes_what_it_shows(name, is_terminal, served, monkeypatch):
    cluster, ids, folder = served
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("NOETL_HOME", str(cluster.home))
    monkeypatch.setenv("NOETL_TOKEN", cluster.token)
    local = name.split()[0] in ("run", "server", "worker", "dev", "token", "restore", "backup")
    if local:
        monkeypatch.delenv("NOETL_SERVER_URL", raising=False)
        monkeypatch.setenv("NOETL_HOME", str(folder / "home"))
    else:
        monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
    monkeypatch.chdir(folder)
    shown = 0
    for arguments in [*CALLS[name], *(DOCUMENTS.get(name, []) if is_terminal else [])]:
        words = [ids.get(word, word).replace("E", EVIL) if word in ids or "E" in word else word for word in arguments]
        streams = [TerminalText() if is_terminal else io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
        for stream, attribute in zip(streams, ("stdout", "stderr"), strict=True):
            monkeypatch.setattr(sys, attribute, stream)
        code = app.run([*name.split(), *words])
        for stream in streams:
            text = stream.getvalue() if isinstance(stream, TerminalText) else written(stream)
            assert is_safe(OWN.sub("", text) if is_terminal else text), (arguments, text)
            assert "Traceback" not in text, (arguments, text)
            assert "not valid TOML" not in text, (arguments, text)  # the command itself has run
            shown += len(text)
        assert code in (0, 1, 2, 3, 4, 124), (arguments, code)
    assert shown


WRITERS = {
    "output/terminal.py", "output/display.py", "output/progress.py",  # the ways of printing
    "playbooks/validate.py", "app.py",  # escape what they write
}  # fmt: skip


def test_commands_print_through_the_terminal_only():
    """No module of the command line writes to standard output by itself."""
    folder = Path(noetl.cli.__file__).parent
    found = []
    for path in folder.rglob("*.py"):
        if str(path.relative_to(folder)) in WRITERS or "templates" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                text = ast.unparse(node.func)
                is_write = re.fullmatch(r"sys\.(stdout|stderr)\.(?!flush|isatty|reconfigure|fileno).*", text)
                if is_write or text in ("print", "click.echo", "click.secho"):
                    found.append(f"{path.relative_to(folder)}:{node.lineno}: {text}")
    assert found == []
