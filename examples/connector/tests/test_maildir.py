"""The tests of the connector: its own behaviour, and the conformance suite of every source."""

import itertools
import json
import mailbox
from email.message import EmailMessage

import pytest

from noetl.testing import SourceConformance, run_tool

numbers = itertools.count()


def copy(source, target, **others):
    return run_tool("transfer", {"source": source, "targets": [target], **others})


def test_messages_become_rows_and_rows_become_messages(tmp_path):
    rows = [{"subject": f"Order {n}", "from": "shop@example.com", "text": "Thank you."} for n in range(3)]
    folder = {"kind": "maildir", "path": str(tmp_path / "mail")}
    assert copy(rows, folder).data["rows"] == 3
    assert copy(folder, {"kind": "file", "path": str(tmp_path / "mail.csv")}).data["rows"] == 3
    assert (tmp_path / "mail.csv").read_text().count("shop@example.com") == 3


def test_values_of_messages_arrive_as_they_were_written(tmp_path):
    folder = {"kind": "maildir", "path": str(tmp_path / "mail")}
    assert copy([{"subject": "Grüße\nan alle", "from": None, "text": "Café"}], folder).error is None
    message = EmailMessage()
    message["Subject"] = "Rechnung"
    message.set_content("Siehe Anhang")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="x.pdf")
    mailbox.Maildir(tmp_path / "mail").add(message)
    assert copy(folder, {"kind": "file", "path": str(tmp_path / "mail.json")}).error is None
    rows = json.loads((tmp_path / "mail.json").read_text())
    found = {(row["subject"], row["from"], row["text"].strip()) for row in rows}
    assert found == {("Grüße an alle", None, "Café"), ("Rechnung", None, "Siehe Anhang")}


def test_a_failed_transfer_removes_its_messages(tmp_path):
    good = {"kind": "maildir", "path": str(tmp_path / "mail")}
    bad = {"kind": "maildir", "path": str(tmp_path / "none"), "create": False}
    outcome = run_tool("transfer", {"data": [{"subject": "Order"}], "targets": [good, bad]})
    assert outcome.error.kind == "not_found"
    assert len(mailbox.Maildir(tmp_path / "mail")) == 0


class TestSource(SourceConformance):
    keeps_columns = False  # an empty folder has no columns
    ordered = False
    rows = [{"id": "1", "from": "ada", "to": None, "subject": "Hi", "date": None, "text": "Hello.\n"}]

    @pytest.fixture
    def place(self, tmp_path):
        def store(rows):
            folder = mailbox.Maildir(tmp_path / f"mail{next(numbers)}")
            for row in rows:
                folder.add(
                    f"From: {row.get('from', row['id'])}\nSubject: {row.get('subject')}\n\n{row.get('text', '')}"
                )
            return {"kind": "maildir", "path": folder._path}

        return store

    test_rows_before_the_cursor_are_not_read = None  # keys are chosen by the folder

    def _sorted(self, rows):
        return len(rows)

    def test_chunks_divide_the_rows(self, place, copy):
        outcome, rows = copy(place([{"id": n} for n in range(25)]), chunk={"size": 10})
        assert (len(rows), outcome.data["chunks"]) == (25, 3)
