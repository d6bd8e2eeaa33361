"""Kind `mail` with a real SMTP server."""

from __future__ import annotations

import json
import socket

import pytest

from devcluster.servers import free_port
from noetl.embedded import run
from noetl.testing import run_tool
from tests.smtp import make_certificate, smtp_server

MESSAGE = {"to": "Ann <ann@example.com>", "subject": "Orders of 2026", "text": "17 rows ✓"}


def test_a_message_has_its_recipients_texts_and_headers():
    with smtp_server() as inbox:
        outcome = run_tool(
            "mail",
            {
                **MESSAGE, "cc": ["bob@example.com"], "bcc": "eve@example.com", "html": "<b>17</b>",
                "reply_to": "ops@example.com", "headers": {"X-Job": "orders"}, "auth": inbox.fields,
            },
        )  # fmt: skip
        assert outcome.status == "ok", outcome.error
        (message,) = inbox.messages
        assert inbox.recipients == [["ann@example.com", "bob@example.com", "eve@example.com"]]
        assert (message["To"], message["Cc"], message["Bcc"]) == ("Ann <ann@example.com>", "bob@example.com", None)
        assert (message["From"], message["Subject"], message["X-Job"]) == (
            "noetl@example.com",
            "Orders of 2026",
            "orders",
        )
        assert message.get_body(("plain",)).get_content().strip() == "17 rows ✓"
        assert message.get_body(("html",)).get_content().strip() == "<b>17</b>"
        assert outcome.data["message_id"] == message["Message-ID"]
        assert outcome.data["accepted"] == ["ann@example.com", "bob@example.com", "eve@example.com"]


def test_attachments_are_stored_results_data_and_files(tmp_path):
    (tmp_path / "note.txt").write_text("a note")
    playbook = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: report}
workload: {smtp: {}}
workflow:
  - step: start
    tool: {kind: python, code: "result = [{'id': n, 'text': 'x' * 100} for n in range(2000)]"}
    next: {arcs: [{step: send}]}
  - step: send
    tool:
      kind: mail
      auth: "{{ workload.smtp }}"
      to: ann@example.com
      subject: report
      attachments:
        - {name: rows.json, ref: "{{ start.ref }}"}
        - {name: small.csv, data: [{a: 1, b: x}]}
        - {path: note.txt}
"""
    (tmp_path / "report.yaml").write_text(playbook)
    with smtp_server() as inbox:
        result = run(tmp_path / "report.yaml", {"smtp": inbox.fields}, store="memory:")
        assert result.status == "success", result.error
        files = {each.get_filename(): each for each in inbox.messages[0].iter_attachments()}
        assert list(files) == ["rows.json", "small.csv", "note.txt"]
        assert len(json.loads(files["rows.json"].get_content())) == 2000
        assert files["small.csv"].get_content().split() == ["a,b", "1,x"]
        assert files["small.csv"].get_content_type() == "text/csv"
        assert files["note.txt"].get_content() == "a note"


@pytest.mark.parametrize("implicit", [False, True])
def test_tls_and_a_password(tmp_path, implicit, monkeypatch):
    certificate = make_certificate(tmp_path)
    with smtp_server(certificate=certificate, implicit=implicit, password=("me", "pa ss")) as inbox:
        fields = {**inbox.fields, "tls": "tls" if implicit else "starttls", "username": "me", "password": "pa ss"}
        refused = run_tool("mail", {**MESSAGE, "auth": fields})
        assert refused.error is not None and refused.error.kind == "connection"  # the certificate is not trusted
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert run_tool("mail", {**MESSAGE, "auth": fields}).status == "ok"
        assert inbox.encrypted == [True]
        wrong = run_tool("mail", {**MESSAGE, "auth": {**fields, "password": "wrong"}})
        assert wrong.error is not None and wrong.error.kind == "auth"
        assert "wrong" not in wrong.error.message


def test_a_password_is_not_sent_without_encryption_unless_that_is_set():
    with smtp_server(password=("me", "secret")) as inbox:
        fields = {**inbox.fields, "username": "me", "password": "secret"}
        del fields["tls"]
        refused = run_tool("mail", {**MESSAGE, "auth": fields})
        assert refused.error is not None and "tls" in refused.error.message.lower()
        assert run_tool("mail", {**MESSAGE, "auth": {**fields, "tls": "none"}}).status == "ok"


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"to": "nobody"}, "schema", "not a mail address"),
        ({"to": "a@b.c\r\nBcc: x@y.z"}, "schema", "one line"),
        ({"to": []}, "schema", "recipient"),
        ({"headers": {"Subject": "x"}}, "schema", "parameter of its own"),
        ({"attachments": [{"name": "x"}]}, "schema", "exactly one of ref, data and path"),
        ({"attachments": [{"name": "x", "data": "y", "path": "z"}]}, "schema", "exactly one"),
        ({"attachments": [{"ref": 7}]}, "schema", "reference"),
        ({"attachments": [{"path": "/no/such/file"}]}, "not_found", "attachment"),
        ({"auth": {"host": "127.0.0.1", "port": "x"}}, "auth", "port"),
        ({"auth": {"from": "a@b.c"}}, "auth", "host"),
        ({"auth": {"host": "127.0.0.1", "tls": "maybe", "from": "a@b.c"}}, "auth", "tls"),
        ({"auth": {"host": "127.0.0.1"}}, "schema", "sender"),
    ],
)
def test_wrong_input_is_an_error_that_says_what(change, kind, words):
    outcome = run_tool("mail", {**MESSAGE, "auth": {"host": "127.0.0.1", "port": 9, "from": "a@b.c"}, **change})
    assert outcome.error is not None
    assert outcome.error.kind == kind, outcome.error
    assert words in outcome.error.message


def test_refusals_and_failures_of_the_server():
    with smtp_server() as inbox:
        inbox.refuse = {"gone@example.com": "550 no such user"}
        several = run_tool("mail", {**MESSAGE, "to": ["ann@example.com", "gone@example.com"], "auth": inbox.fields})
        assert several.data["accepted"] == ["ann@example.com"]
        assert several.data["refused"] == {"gone@example.com": "550 no such user"}
        alone = run_tool("mail", {**MESSAGE, "to": "gone@example.com", "auth": inbox.fields})
        assert alone.error is not None and (alone.error.kind, alone.error.retryable) == ("client_error", False)
        inbox.fail = ["451 try later"]
        later = run_tool("mail", {**MESSAGE, "auth": inbox.fields})
        assert later.error is not None and (later.error.kind, later.error.retryable) == ("server_error", True)
        inbox.fail = ["554 spam"]
        never = run_tool("mail", {**MESSAGE, "auth": inbox.fields})
        assert never.error is not None and (never.error.kind, never.error.retryable) == ("client_error", False)
        large = run_tool(
            "mail", {**MESSAGE, "auth": inbox.fields, "attachments": [{"data": "x" * 100}]}, spec={"max_bytes": 10}
        )
        assert large.error is not None and "max_bytes" in large.error.message
    away = {"host": "127.0.0.1", "port": free_port(), "from": "a@b.c"}
    outcome = run_tool("mail", {**MESSAGE, "auth": away})
    assert outcome.error is not None and (outcome.error.kind, outcome.error.retryable) == ("connection", True)


def test_a_server_that_does_not_answer_is_a_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fields = {"host": "127.0.0.1", "port": silent.getsockname()[1], "from": "a@b.c"}
        outcome = run_tool("mail", {**MESSAGE, "auth": fields}, timeout=0.3)
    assert outcome.error is not None and outcome.error.kind == "timeout"


def test_repeated_attempts_have_one_message_id():
    with smtp_server() as inbox:
        for attempt in (1, 2):
            run_tool("mail", {**MESSAGE, "auth": inbox.fields}, attempt=attempt)
        assert len({each["Message-ID"] for each in inbox.messages}) == 1
