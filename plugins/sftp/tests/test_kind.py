"""Kind `sftp` against a real server."""

from __future__ import annotations

import asyncssh
import pytest

from noetl.testing import run_tool


@pytest.fixture
def run(host):
    def run(action, path, **others):
        return run_tool("sftp", {"auth": "partner", "action": action, "path": path, **others}, host=host)

    return run


def test_a_folder_is_not_downloaded(server):
    (server.folder / "box").mkdir()
    outcome = run_tool("sftp", {"auth": server.auth, "action": "get", "path": "/box"})
    assert (outcome.error.kind, "use `action: list`" in outcome.error.message) == ("client_error", True)


def test_content_is_put_and_read_back(run, server):
    assert run("put", "/a.json", data={"ü": [1]}).data["size"] == 11
    outcome = run("get", "/a.json")
    assert (outcome.data, outcome.helpers["sftp"]["size"]) == ({"ü": [1]}, 11)
    assert run("put", "/b.txt", data="text").error is None
    assert run("get", "/b.txt").data == "text"
    assert [each.name for each in sorted(server.folder.iterdir())] == ["a.json", "b.txt"]


def test_files_of_the_playbook_are_sent_and_received(run, server, tmp_path):
    (tmp_path / "in.bin").write_bytes(b"\x00\xff" * 500_000)
    assert run("put", "/up.bin", file="in.bin").error is None
    assert run("get", "/up.bin", file="sub/out.bin").data["size"] == 1_000_000
    assert (tmp_path / "sub" / "out.bin").read_bytes() == (tmp_path / "in.bin").read_bytes()
    assert [each.name for each in (tmp_path / "sub").iterdir()] == ["out.bin"]


def test_a_large_file_is_a_reference_and_can_be_put_again(run, server, host):
    (server.folder / "large.csv").write_bytes(b"a,b\n" * 1_000_000)
    outcome = run("get", "/large.csv")
    assert outcome.ref.meta.bytes == 4_000_000
    assert run("put", "/copy.csv", ref=outcome.ref).error is None
    assert (server.folder / "copy.csv").read_bytes() == (server.folder / "large.csv").read_bytes()


def test_list_stat_move_and_delete(run, server):
    for name in ("b.csv", "a.csv", "c.txt"):
        (server.folder / name).write_text(name)
    assert [each["path"] for each in run("list", "/*.csv").data["files"]] == ["/a.csv", "/b.csv"]
    assert run("list", "/").data["count"] == 3
    assert run("list", "/*.none").data == {"files": [], "count": 0}
    assert run("stat", "/a.csv").data["size"] == 5
    assert run("exists", "/a.csv").data is True
    assert run("mkdir", "/done/today").error is None
    assert run("move", "/a.csv", to="/done/today/a.csv").data["path"] == "/done/today/a.csv"
    assert run("move", "/b.csv", to="/done/today/a.csv").error is None  # replaces what is there
    assert (server.folder / "done" / "today" / "a.csv").read_text() == "b.csv"
    assert run("delete", "/*.txt").data == {"deleted": ["/c.txt"], "count": 1}
    assert run("exists", "/c.txt").data is False


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"action": "get", "path": "/none"}, "not_found", "No such file"),
        ({"action": "list", "path": "/none"}, "not_found", "No such file"),
        ({"action": "put", "path": "/none/a", "data": "x"}, "not_found", "No such file"),
        ({"action": "put", "path": "/a"}, "schema", "`data`, `file` or `ref`"),
        ({"action": "put", "path": "/a", "file": "none.bin"}, "not_found", "none.bin"),
        ({"action": "move", "path": "/a"}, "schema", "`to`"),
        ({"action": "open", "path": "/a"}, "schema", "must be one of"),
        ({"action": "get", "path": "/a", "auth": {"user": "x"}}, "schema", "`host`"),
        ({"action": "get", "path": "/a", "auth": "http://x"}, "schema", "sftp://"),
        ({"action": "get", "path": "/a", "auth": "nothing"}, "auth", "nothing"),
        ({"action": "get", "path": "/a", "auth": {"host": "127.0.0.1", "port": 1}}, "connection", "sftp"),
    ],
)
def test_an_error_says_what_is_wrong(host, given, kind, said):
    outcome = run_tool("sftp", {"auth": "partner", **given}, host=host)
    assert (outcome.error.kind, said in outcome.error.message) == (kind, True), outcome.error


def test_a_wrong_password_is_an_auth_error(server):
    auth = {**server.auth, "password": "wrong"}
    assert run_tool("sftp", {"auth": auth, "action": "list", "path": "/"}).error.kind == "auth"


def test_the_key_of_the_server_is_verified(server):
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    outcome = run_tool("sftp", {"auth": {**server.auth, "host_key": other}, "action": "list", "path": "/"})
    assert outcome.error.kind == "auth"
    assert "is not the one of the credential, so no password was sent" in outcome.error.message
    unverified = {name: value for name, value in server.auth.items() if name != "host_key"} | {"verify": False}
    assert run_tool("sftp", {"auth": unverified, "action": "list", "path": "/"}).error is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host_key": "# a comment\n127.0.0.1 KEY a comment\n"}, None),
        ({"host_key": "OTHER\nKEY"}, None),
        ({"known_hosts": "[127.0.0.1]:PORT KEY"}, None),
        ({"known_hosts": "[127.0.0.1]:PORT OTHER"}, "no password was sent"),
        ({"known_hosts": "/home/me/.ssh/known_hosts"}, "`known_hosts` of the credential must be the text"),
        ({"host_key": "ssh-ed25519 nonsense"}, "`host_key` of the credential is not a public key"),
    ],
)
def test_keys_of_the_server_are_given_in_the_form_of_their_tools(server, given, said):
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    values = {"KEY": server.auth["host_key"], "OTHER": other, "PORT": str(server.port)}
    auth = {name: value for name, value in server.auth.items() if name != "host_key"}
    for name, text in given.items():
        for word, value in values.items():
            text = text.replace(word, value)
        auth[name] = text
    outcome = run_tool("sftp", {"auth": auth, "action": "list", "path": "/"})
    assert outcome.error is None if said is None else said in outcome.error.message


def test_a_pattern_does_not_match_hidden_files(run, server):
    for name in (".x.csv.part", "x.csv"):
        (server.folder / name).write_text("id\n1\n")
    paths = [[each["path"] for each in run("list", path).data["files"]] for path in ("/*", "/.*", "/")]
    assert paths == [["/x.csv"], ["/.x.csv.part"], ["/.x.csv.part", "/x.csv"]]
    assert run("delete", "/*").data["deleted"] == ["/x.csv"]


@pytest.mark.parametrize("passphrase", [None, "open sesame"])
def test_a_private_key_logs_in(server, passphrase):
    key = server.client_key.export_private_key("openssh", passphrase=passphrase).decode()
    auth = {**server.auth, "private_key": key, "passphrase": passphrase}
    del auth["password"]
    assert run_tool("sftp", {"auth": auth, "action": "list", "path": "/"}).error is None


def test_a_key_that_cannot_be_read_is_named(server):
    outcome = run_tool("sftp", {"auth": {**server.auth, "private_key": "no key"}, "action": "list", "path": "/"})
    assert (outcome.error.kind, "private_key" in outcome.error.message) == ("schema", True)


def test_an_error_names_the_path_or_the_address(server, host):
    missing = run_tool("sftp", {"auth": "partner", "action": "get", "path": "/none.txt"}, host=host)
    assert missing.error.message == "sftp: /none.txt: No such file or directory"
    refused = run_tool("sftp", {"auth": {**server.auth, "port": 1}, "action": "list", "path": "/"}, host=host)
    assert refused.error.kind == "connection"
    assert "cannot connect to 127.0.0.1:1" in refused.error.message


def test_a_folder_is_neither_deleted_nor_replaced(run, server):
    (server.folder / "sub").mkdir()
    (server.folder / "a.txt").write_text("x")
    for outcome in (run("delete", "/sub"), run("move", "/a.txt", to="/sub")):
        assert (outcome.error.kind, outcome.error.retryable) == ("client_error", False), outcome.error
        assert "folder" in outcome.error.message.lower() or "directory" in outcome.error.message.lower()
