"""Class "keychain and files": secrets of the installation and files outside of the author's folders stay unread."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import noetl
from noetl.connections.objects import parse_location
from noetl.core.model.playbook import KeychainEntry
from noetl.core.templates.paths import leaves_folder, with_checked_paths
from noetl.core.templates.template import compile_value
from noetl.errors import SecretUnavailable, TemplateError
from noetl.secrets.keychain import InstallationKeychain, no_kernel_files, only_inside
from noetl.testing import run_tool


def read(keychain: InstallationKeychain, fields: dict, *, kind: str = "file", workload=None, file: str = "") -> object:
    entry = KeychainEntry("x", kind, fields)
    return asyncio.run(keychain.resolve([entry], ["x"], workload=workload, file=file))["x"]


def server_keychain(tmp_path: Path) -> InstallationKeychain:
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "secrets").mkdir(exist_ok=True)
    allowed = only_inside([str(tmp_path / "secrets"), str(tmp_path / "home")], tmp_path / "home")
    return InstallationKeychain(allows_file=allowed)


KERNEL = ["/proc/self/environ", "/proc/1/environ", "/proc/self/cmdline", "/proc/self/fd/0", "/dev/stdin", "/dev/zero"]
KERNEL += ["/sys/kernel/notes", "/proc/../proc/self/environ", "//proc/self/environ", "/dev/fd/0", "/proc/self/mem"]


@pytest.mark.parametrize("path", [*KERNEL, "/proc/self/root/etc/hostname", "/proc/self/cwd/pyproject.toml"])
def test_files_of_the_kernel_are_never_read(path, tmp_path, monkeypatch):
    monkeypatch.setenv("NOETL_SECRET_KEY", "top-secret")
    for keychain in (server_keychain(tmp_path), InstallationKeychain()):
        if "/root/" in path or "/cwd/" in path:  # links of the kernel to ordinary files
            keychain = server_keychain(tmp_path)
        with pytest.raises(SecretUnavailable):
            read(keychain, {"path": path})
    assert no_kernel_files("/procession/file")


def test_a_server_reads_only_files_in_its_secret_folders(tmp_path):
    keychain = server_keychain(tmp_path)
    (tmp_path / "secrets/token").write_text("sesame\n")
    (tmp_path / "home/admin.token").write_text("admin")
    (tmp_path / "other").write_text("other")
    assert read(keychain, {"path": str(tmp_path / "secrets/token")}) == "sesame"
    for path in ("home/admin.token", "other", "secrets/../other", "secrets/../home/admin.token"):
        with pytest.raises(SecretUnavailable, match="secret files"):
            read(keychain, {"path": str(tmp_path / path)})


@pytest.mark.parametrize("kind", ["file", "secret_manager"])
def test_symbolic_links_do_not_lead_out_of_the_secret_folders(tmp_path, kind):
    keychain = server_keychain(tmp_path)
    (tmp_path / "other").write_text("other")
    (tmp_path / "secrets/link").symlink_to(tmp_path / "other")
    (tmp_path / "secrets/folder").symlink_to(tmp_path)
    for name in ("link", "folder/other"):
        if kind == "file":
            fields = {"path": str(tmp_path / "secrets" / name)}
        else:
            fields = {"provider": "file", "path": str(tmp_path / "secrets"), "secret": name}
        with pytest.raises(SecretUnavailable):
            read(keychain, fields, kind=kind)


def test_a_folder_that_is_replaced_by_a_link_while_its_file_is_opened(tmp_path, monkeypatch):
    """The path is checked, then a folder of it is replaced, then it is opened."""
    keychain = server_keychain(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/key").write_text("other")
    (tmp_path / "secrets/sub").mkdir()
    (tmp_path / "secrets/sub/key").write_text("sesame")
    opened = os.open

    def replace(path, flags, *more, **others):
        if str(path).endswith("sub/key") and not (tmp_path / "secrets/sub").is_symlink():
            (tmp_path / "secrets/sub").rename(tmp_path / "secrets/old")
            (tmp_path / "secrets/sub").symlink_to(tmp_path / "other")
        return opened(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", replace)
    with pytest.raises(SecretUnavailable, match="replaced"):
        read(keychain, {"path": str(tmp_path / "secrets/sub/key")})


SPELLINGS = [
    "{secrets}/../other", "{secrets}/./../other", "{secrets}//../other", "{secrets}/sub/../../other", "{secrets}2/key",
    "/proc/self/root{tmp}/other", "/proc/thread-self/root{tmp}/other", "/proc/1/root{tmp}/other", "{secrets}/loop", "{secrets}/up",
    "{secrets}/up/other", "{secrets}/up/home/admin.token", "{secrets}/home", "{secrets}/relative", "{secrets}/kernel",
    "{secrets}/root/etc/hostname", "{secrets}/fd", "{secrets}/fifo", "{secrets}", "{secrets}/", "{secrets}/sub",
    "{secrets}/key/../../other", "{secrets}/missing/../../other", "{secrets}/%2e%2e/other", "{secrets}/..%2fother", "{SECRETS}/key",
    "~/../../{tmp}/other", "file://{tmp}/other", "{secrets}/\x00/other", "{secrets}/key\x00", "{secrets}/\uff0e\uff0e/other", "", ".", "..",
    "{tmp}/home/admin.token", "{secrets}/../home/admin.token", "/dev/fd/3", "/dev/shm/x", "/sys/class/net/lo/address", "{secrets}/large",
]  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS, ids=ascii)
@pytest.mark.parametrize("kind", ["file", "secret_manager"])
def test_spellings_that_lead_out_of_the_secret_folders(spelling, kind, tmp_path, monkeypatch):
    keychain = server_keychain(tmp_path)
    secrets = tmp_path / "secrets"
    for name in ("other", "home/admin.token", "secrets2/key"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("forbidden")
    (secrets / "key").write_text("inside")
    (secrets / "sub").mkdir()
    (secrets / "large").write_bytes(b"x" * (20 << 20))
    os.mkfifo(secrets / "fifo")
    for name, target in {
        "loop": "loop", "up": "..", "home": "../home/admin.token", "relative": "sub/../../other", "kernel": "/proc/self/environ",
        "root": "/proc/self/root", "fd": "/dev/fd/0",
    }.items():  # fmt: skip
        (secrets / name).symlink_to(target)
    monkeypatch.setenv("HOME", str(secrets / "sub"))
    path = spelling.format(secrets=secrets, tmp=tmp_path, SECRETS=tmp_path / "SECRETS")
    if kind == "file":
        fields = {"path": path}
    else:
        fields = {
            "provider": "file",
            "path": str(secrets),
            "secret": os.path.relpath(path, secrets) if path else "../other",
        }
    with pytest.raises(SecretUnavailable) as refused:
        read(keychain, fields, kind=kind, file=str(tmp_path / "playbook.yaml"))
    assert "forbidden" not in str(refused.value)


def test_a_pipe_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SecretUnavailable, match="not a file"):
        read(InstallationKeychain(), {"path": str(tmp_path / "pipe")})


def test_values_in_a_keychain_path_stay_in_the_folder_before_them(tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/a").write_text("a")
    (tmp_path / "b").write_text("b")
    file = str(tmp_path / "playbook.yaml")
    fields = {"path": "keys/{{ workload.name }}"}
    assert read(InstallationKeychain(), fields, workload={"name": "a"}, file=file) == "a"
    for name in ("../b", str(tmp_path / "b"), "x/../../b", "..\\..\\b"):
        with pytest.raises(SecretUnavailable):
            read(InstallationKeychain(), fields, workload={"name": name}, file=file)


@pytest.mark.parametrize(
    ("template", "made", "leaves"),
    [
        ("data/{{ x }}.csv", "data/a.csv", False),
        ("data/{{ x }}.csv", "data/sub/a.csv", False),
        ("data/{{ x }}.csv", "data/../../etc/passwd.csv", True),
        ("data/{{ x }}.csv", "data/..\\..\\x.csv", True),
        ("/srv/data/{{ x }}", "/srv/data/../secret", True),
        ("/srv/data/{{ x }}", "/srv/data2/secret", True),
        ("../shared/{{ x }}", "../shared/a", False),
        ("../shared/{{ x }}", "../other/a", True),
        ("{{ x }}", "/tmp/a.csv", False),
        ("{{ x }}", "../a.csv", True),
        ("{{ x }}/a.csv", "b/../../a.csv", True),
        ("out-{{ x }}.csv", "out-/../../a.csv", True),
        ("out-{{ x }}.csv", "out-1.csv", False),
        ("/{{ x }}", "/etc/passwd", False),
        ("{{ x }}", "s3://bucket/../key", False),
        ("data/{{ x }}", "http://host/x", True),
        ("file:///srv/data/{{ x }}", "file:///srv/data/a", False),
        ("file:///srv/data/{{ x }}", "file:///srv/data/../../etc/passwd", True),
        ("file:///srv/data/{{ x }}", "file:///srv/data/%2e%2e/%2E%2E/etc/passwd", True),
        ("file:///srv/data/{{ x }}", "file:///srv/data/..%2f..%2fetc/passwd", True),
        ("FILE:///srv/data/{{ x }}", "FILE:///srv/data/../secret", True),
        ("file:///srv/data/{{ x }}", "s3://bucket/key", True),
    ],
)
def test_the_author_chooses_the_folder(template, made, leaves):
    assert leaves_folder(template, made) is leaves


def test_members_of_parameters_that_name_files_are_checked():
    value = {"kind": "object", "path": "in/{{ x }}", "query": "{{ x }}", "items": [{"file": "out/{{ x }}"}]}
    checked = compile_value(with_checked_paths(value))
    assert checked.evaluate({"x": "a"})["path"] == "in/a"
    with pytest.raises(TemplateError, match="leads out of the folder"):
        checked.evaluate({"x": "../a"})
    for key in ("s3://bucket/{{ x }}", "https://host/{{ x }}"):
        assert compile_value(with_checked_paths(key)).evaluate({"x": "../a"}).endswith("../a")
    deferred = with_checked_paths({"path": "in/{{ chunk.index }}"}, frozenset(["chunk"]))
    assert deferred == {"path": "in/{{ chunk.index }}"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("python", {"script": {"uri": "scripts/{{ x }}.py"}}),
        ("shell", {"script": {"uri": "scripts/{{ x }}.sh"}}),
        ("postgres", {"script": {"uri": "sql/{{ x }}.sql"}}),
        ("duckdb", {"script": {"uri": "sql/{{ x }}.sql"}}),
        ("sqlite", {"script": {"uri": "file:///srv/sql/{{ x }}.sql"}}),
        ("duckdb", {"command": "select 1", "attach": {"other": "data/{{ x }}.db"}}),
        ("duckdb", {"command": "select 1", "attach": {"other": {"file": "data/{{ x }}.db"}}}),
        ("sqlite", {"command": "select 1", "attach": {"other": "data/{{ x }}.db"}}),
        ("duckdb", {"command": "select 1", "tables": {"t": "data/{{ x }}.csv"}}),
        ("resolve", {"uri": "data/{{ x }}.json"}),
        ("resolve", {"uri": "file:///srv/data/{{ x }}.json"}),
        ("object", {"action": "get", "uri": "file:///srv/data/{{ x }}"}),
        ("nats", {"action": "object_put", "bucket": "b", "key": "k", "file": "data/{{ x }}"}),
        ("mail", {"to": "a@b.c", "subject": "s", "attachments": [{"path": "data/{{ x }}.pdf"}]}),
        (
            "transfer",
            {"source": {"kind": "object", "path": "in/{{ x }}"}, "targets": [{"kind": "object", "path": "o"}]},
        ),
        ("http", {"url": "https://a", "body_file": "data/{{ x }}"}),
    ],
    ids=str,
)
def test_no_kind_reads_a_file_outside_of_the_folder_that_the_author_wrote(kind, fields):
    playbook = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "reads"},
        "workload": {"x": "../../secret"},
        "workflow": [{"step": "start", "tool": {"kind": kind, **_with(fields, "{{ workload.x }}")}}],
    }
    result = noetl.run(yaml.safe_dump(playbook))
    assert result.status == "failed"
    assert "leads out of the folder" in str(result.error)


def _with(value, text: str):
    if isinstance(value, str):
        return value.replace("{{ x }}", text)
    if isinstance(value, list):
        return [_with(each, text) for each in value]
    return {key: _with(each, text) for key, each in value.items()}


@pytest.mark.parametrize("key", ["../secret", "/etc/passwd", "a/../../secret", "../data2/a"])
def test_a_key_does_not_lead_out_of_its_bucket(key):
    with pytest.raises(ValueError, match="must not lead out"):
        parse_location(key, scheme="file", bucket="/srv/data")
    assert parse_location("a/b", scheme="file", bucket="/srv/data").bucket == "/srv/data/a"


def test_inherited_environments_have_no_settings_of_noetl(monkeypatch):
    monkeypatch.setenv("NOETL_SECRET_KEY", "top-secret")
    monkeypatch.setenv("VISIBLE", "yes")
    outcome = run_tool("shell", {"cmd": "env"}, spec={"inherit_env": True})
    assert "VISIBLE=yes" in outcome.data["stdout"]
    assert "NOETL_SECRET_KEY" not in outcome.data["stdout"]
    outcome = run_tool("shell", {"cmd": "env"}, spec={"inherit_env": ["NOETL_SECRET_KEY"]})
    assert outcome.error.kind == "schema"


ERASE = """
import os, subprocess
from noetl.runtime.environment_block import erase_values
assert erase_values() == 2
block = open("/proc/self/environ", "rb").read()
assert b"s3cret" not in block and b"t0ken" not in block, block
assert b"KEPT=value" in block
assert os.environ["NOETL_TOKEN"] == "t0ken"
print(subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], capture_output=True).stdout.count(b"0ken"))
import duckdb
print(duckdb.sql("SELECT content FROM read_text('/proc/self/environ')").fetchall()[0][0].count("s3cret"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_worker_erases_its_secrets_from_its_environment_block():
    """A task can read the file of its worker's process, and DuckDB runs inside of it."""
    environ = {"NOETL_TOKEN": "t0ken", "NOETL_SECRET_KEY": "s3cret", "KEPT": "value", "PATH": os.environ["PATH"]}
    run = subprocess.run([sys.executable, "-c", ERASE], env=environ, capture_output=True, text=True)
    assert run.stdout.split() == ["0", "0"], run.stderr
