"""`noetl run` keeps compiled playbooks, and never uses one that another text, name, mode or code gave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noetl.cli.compile_cache import MAX_ENTRIES, CompileCache
from noetl.core.language.compile import compile_playbook
from noetl.tools.registry import specs

HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello}
workflow:
  - {step: start, tool: {kind: python, code: "result = 'one'"}}
"""
WARNS = HELLO.replace("{kind: python,", "{kind: python, nonsense: 1,")
LOADED = (
    "import sys, os; os._exit = sys.exit\n"
    "from noetl.clictl import main\n"
    "sys.argv = ['noetl', 'run', 'hello.yaml']\n"
    "try: main()\n"
    "except SystemExit: pass\n"
    "print([name for name in sys.modules if name.startswith(('noetl.core.language', 'yaml'))], file=sys.stderr)\n"
)


def run(folder: Path) -> tuple[str, str]:
    environment = {**os.environ, "NOETL_HOME": str(folder / "home"), "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr.splitlines()[-1]


def test_an_unchanged_playbook_is_run_without_the_compiler(tmp_path: Path):
    (tmp_path / "hello.yaml").write_text(HELLO)
    first, second = run(tmp_path), run(tmp_path)
    assert first[0] == second[0] == "one\n"
    assert "noetl.core.language.compile" in first[1]
    assert second[1] == "[]"
    (tmp_path / "hello.yaml").write_text(HELLO.replace("one", "two"))
    assert run(tmp_path)[0] == "two\n"


def test_warnings_are_shown_on_every_run(noetl, folder: Path):
    (folder / "warns.yaml").write_text(WARNS)
    for _ in range(2):
        assert 'python has no parameter "nonsense"' in noetl("run", "warns.yaml").err


def compiled(text: str = HELLO):
    playbook = compile_playbook(text, file="", specs=specs()).playbook
    assert playbook is not None
    return playbook


def test_a_key_depends_on_text_name_modes_and_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def keys() -> set[str]:
        cache = CompileCache(tmp_path)
        return {
            cache.key(text, name, strict=strict, legacy=legacy)
            for text in (b"a", b"b")
            for name in ("x.yaml", "y.yaml")
            for strict in (False, True)
            for legacy in (False, True)
        }

    before = keys()
    assert len(before) == 16
    assert keys() == before
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    with_folder = keys()
    (packages / "plugin.dist-info").mkdir()
    with_plugin = keys()
    assert not before & with_folder and not with_folder & with_plugin


def test_a_damaged_entry_is_not_used(tmp_path: Path):
    cache = CompileCache(tmp_path)
    cache.put("k", compiled())
    assert cache.get("k") == compiled()
    (entry,) = (tmp_path / "cache" / "playbooks").iterdir()
    for damaged in (b"", b"{", entry.read_bytes()[:-5], b"\xff\xfe", b'{"name": 1}'):
        entry.write_bytes(damaged)
        assert cache.get("k") is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path):
    (tmp_path / "cache").write_text("a file")
    cache = CompileCache(tmp_path)
    cache.put("k", compiled())
    assert cache.get("k") is None


def test_the_oldest_entries_are_removed(tmp_path: Path):
    cache = CompileCache(tmp_path)
    for number in range(MAX_ENTRIES + 5):
        cache.put(f"{number:04}", compiled())
        os.utime(tmp_path / "cache" / "playbooks" / f"{number:04}", ns=(number, number))
    assert cache.get("0000") is None and cache.get(f"{MAX_ENTRIES + 4:04}") is not None
    assert len(list((tmp_path / "cache" / "playbooks").iterdir())) <= MAX_ENTRIES + 1
