"""Commands about this installation: credentials, doctor, schema."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

SECRET = "swordfish-4711"
READS = """\
keychain:
  - {{name: {name}, kind: credential}}
workflow:
  - step: start
    tool:
      - name: measure
        kind: python
        input: {{length: "{{{{ keychain.{name}.password | length }}}}"}}
        code: |
          result = length
"""


def test_a_credential_is_stored_listed_used_and_deleted(noetl, playbook, folder):
    (folder / "secret.json").write_text(json.dumps({"user": "me", "password": SECRET}))
    assert noetl("credential", "set", "shop", "--type", "postgres", "--data", "@secret.json").code == 0
    assert noetl("credential", "list", "--json").json == [{"name": "shop", "type": "postgres"}]
    answer = noetl("run", playbook(READS.format(name="shop")), "--json")
    assert answer.code == 0, answer.err
    assert answer.json["output"]["data"] == len(SECRET)
    assert noetl("credential", "delete", "shop").code == 0
    assert noetl("credential", "list", "--json").json == []
    assert noetl("credential", "delete", "shop").code == 2


def test_a_missing_credential_fails_the_run_and_is_named(noetl, playbook):
    answer = noetl("run", playbook(READS.format(name="nowhere")))
    assert answer.code == 1
    assert "nowhere" in answer.err


def test_a_credential_is_read_from_stdin(noetl, start):
    process = start("credential", "set", "piped", "--data", "-", stdin=subprocess.PIPE)
    process.communicate(json.dumps({"password": SECRET}), timeout=30)
    assert process.returncode == 0
    assert noetl("credential", "list", "--json").json == [{"name": "piped", "type": "generic"}]


@pytest.mark.parametrize("data", [f'{{"password": "{SECRET}"', f'"{SECRET}"', f'["{SECRET}"]'])
def test_invalid_data_is_rejected_without_being_shown(noetl, data):
    answer = noetl("credential", "set", "shop", "--data", data)
    assert answer.code == 2
    assert SECRET not in answer.err + answer.out
    assert answer.err.count("\n") == 1


def test_a_secret_value_is_not_stored_as_plain_text(noetl, folder):
    noetl("credential", "set", "shop", "--data", json.dumps({"password": SECRET}))
    home = folder.parent / "home"
    files = [file for file in home.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]


def test_an_invalid_name_is_rejected(noetl):
    assert noetl("credential", "set", "no spaces", "--data", "{}").code == 2


def test_doctor_reports_no_failure_for_a_new_installation(noetl):
    answer = noetl("doctor", "--json")
    assert answer.code == 0
    assert {one["check"] for one in answer.json} >= {"noetl", "settings", "home", "sqlite", "store", "tools"}
    assert {one["status"] for one in answer.json} <= {"ok", "warning"}
    assert "noop" in noetl("doctor").out


def test_doctor_reports_no_failure_for_a_used_installation(noetl, playbook):
    noetl("run", playbook("workflow:\n  - step: start\n    tool: {kind: noop}\n"))
    store = next(one for one in noetl("doctor", "--json").json if one["check"] == "store")
    assert store["status"] == "ok"
    assert "0 unfinished" in store["detail"]


def test_doctor_names_failures(noetl, folder, monkeypatch):
    monkeypatch.setenv("NOETL_SERVER_URL", "http://127.0.0.1:9")
    home = folder / "home"
    home.mkdir()
    (home / "noetl.db").write_text("this is no database, it is a text that is long enough to be looked at" * 50)
    monkeypatch.setenv("NOETL_HOME", str(home))
    (folder / "noetl.toml").write_text("slotz = 1\n")
    answer = noetl("doctor", "--json")
    assert answer.code == 1
    found = {one["check"]: one["status"] for one in answer.json}
    assert found["settings"] == "warning"
    assert found["store"] == "failed"
    assert found["server"] == "failed"


def reported(noetl, check: str, *words: str) -> list[tuple[str, str]]:
    return [(one["status"], one["detail"]) for one in noetl("doctor", "--json", *words).json if one["check"] == check]


def test_doctor_checks_the_services_of_an_installation(noetl, folder, monkeypatch):
    monkeypatch.setenv("NOETL_RESULTS", "postgresql://me:hush@127.0.0.1:9/x")
    monkeypatch.setenv("NOETL_NATS_URL", "nats://hush@127.0.0.1:9")
    answer = noetl("doctor", "--json", "--store", "postgresql://me:hush@127.0.0.1:9/x")
    assert answer.code == 1
    assert "hush" not in answer.out
    found = {one["check"]: one for one in answer.json}
    assert {name: found[name]["status"] for name in ("store", "results", "nats")} == {
        "store": "failed",
        "results": "failed",
        "nats": "warning",
    }
    assert "NOETL_STORE is right" in found["store"]["detail"]
    assert "hush" not in noetl("config", "show").out


def test_doctor_names_secrets_with_wrong_permissions_or_content(noetl, folder):
    home = folder.parent / "home"
    noetl("token", "create", "ci")
    assert reported(noetl, "secrets") == [("ok", "tokens: ci")]
    (home / "tokens.json").chmod(0o644)
    assert reported(noetl, "secrets") == [
        ("warning", f"{home}/tokens.json is accessible to other users: chmod 600 {home}/tokens.json")
    ]
    (home / "tokens.json").chmod(0o600)
    (home / "tokens.json").write_text("{")
    ((status, detail),) = reported(noetl, "secrets")
    assert status == "failed" and "is damaged" in detail


def test_doctor_finds_executions_whose_process_has_ended(noetl, playbook):
    slow = playbook("workflow:\n  - step: start\n    tool: {kind: shell, command: sleep 60}\n")
    process = subprocess.Popen([sys.executable, "-m", "noetl.clictl", "run", slow], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        execution_id = process.stderr.readline().split()[1]
        assert [status for status, _ in reported(noetl, "store")] == ["ok"]
    finally:
        process.kill()
        process.communicate()
    (_, (status, detail)) = reported(noetl, "store")
    assert status == "warning"
    assert f"`noetl resume {execution_id}`" in detail


def test_doctor_finds_a_port_in_use_and_a_foreign_server(noetl, monkeypatch):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404, "<html>")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        monkeypatch.setenv("NOETL_SERVER_PORT", str(other.server_port))
        ((status, detail),) = reported(noetl, "server")
        assert status == "warning" and "is in use by another program" in detail
        ((status, detail),) = reported(noetl, "server", "--server", f"http://127.0.0.1:{other.server_port}")
        assert status == "failed" and "is not a NoETL server" in detail
        other.shutdown()


def test_doctor_reports_an_invalid_setting(noetl, monkeypatch):
    monkeypatch.setenv("NOETL_SLOTS", "none")
    answer = noetl("doctor", "--json")
    assert answer.code == 1
    assert answer.json[-1]["check"] == "settings"


def test_the_schema_is_a_json_schema_with_every_kind(noetl):
    document = noetl("schema").json
    assert document["$schema"].startswith("http://json-schema.org/")
    assert '"duckdb"' in json.dumps(document)
