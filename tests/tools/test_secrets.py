"""Kind secrets reads entries by names that are known only at run time."""

from __future__ import annotations

from noetl.testing.tools import ToolHost, run_tool

HOST = {"api": "tok", "pg": {"host": "h", "password": "p"}}


def secrets(**given):
    return run_tool("secrets", given, host=ToolHost(credentials=HOST))


def test_one_entry_by_every_spelling():
    for word in ("name", "secret", "secret_name", "credential"):
        assert secrets(**{word: "api"}).data == {"name": "api", "value": "tok"}
    assert secrets(name="pg").data["value"] == {"host": "h", "password": "p"}
    assert secrets(name="pg", field="password").data["value"] == "p"


def test_several_entries():
    assert secrets(names=["api", "pg"], field=None).data == {"api": "tok", "pg": {"host": "h", "password": "p"}}


def test_missing_entries_are_named():
    outcome = secrets(names=["api", "nope", "neither"])
    assert outcome.error.kind == "auth" and outcome.error.details["missing"] == ["neither", "nope"]
    assert 'no field "pw"; available fields: host, password' in secrets(name="pg", field="pw").error.message
    assert secrets().error.kind == "schema"
    assert "secret_manager" in secrets(name="x", provider="vault").error.message
