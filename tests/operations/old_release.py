"""Earlier releases: their source from the history of this repository, and backups of stores that they wrote.

`python -m tests.operations.old_release COMMIT NAME` adds the backups of a release (see docs/development/releasing.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = Path(__file__).resolve().parent / "layouts"
PREVIOUS = "d5f11d3"  # the last commit of 0.1.0 before its sources were reorganised
WORK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: work, path: tests/work}
workflow:
  - step: start
    loop: {in: "{{ range(4) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool: {name: t, kind: python, input: {n: "{{ iter.n }}"}, code: "result = n * n"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {name: s, kind: python, input: {x: "{{ start.results }}"}, code: "result = sum(x)"}
"""
FAILS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: fails, path: tests/fails}
workflow:
  - step: start
    tool: {name: t, kind: python, code: "raise ValueError('no')"}
"""


def checkout(commit: str, folder: Path) -> Path | None:
    """The source of a commit; None where the history is not available."""
    found = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "noetl"], capture_output=True)
    if found.returncode:
        return None
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def noetl(source: Path, *words: str, home: Path, cwd: Path, store: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of a release."""
    environ = {**os.environ, "PYTHONPATH": str(source), "NOETL_HOME": str(home)}
    if store:
        environ["NOETL_STORE"] = store
    command = [sys.executable, "-m", "noetl.clictl", *words]
    return subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=60)


def use(source: Path, home: Path, folder: Path, store: str = "") -> None:
    """Leave executions, a registered playbook, a schedule and a limit in a store."""
    (folder / "work.yaml").write_text(WORK)
    (folder / "fails.yaml").write_text(FAILS)
    for words in (
        ("run", "work.yaml"),
        ("run", "fails.yaml"),
        ("register", "work.yaml"),
        ("schedule", "add", "tests/work", "--cron", "@daily", "--name", "daily"),
        ("limit", "set", "playbook", "tests/work", "3"),
    ):
        done = noetl(source, *words, home=home, cwd=folder, store=store)
        assert done.returncode == (1 if words[1] == "fails.yaml" else 0), (words, done.stderr)


def main(commit: str, name: str) -> None:
    """Write the backups of a release."""
    from devcluster import services

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = checkout(commit, folder / "source")
        assert source is not None, f"there is no commit {commit}"
        postgres = services.shared("postgres", f"layouts-{os.getpid()}")
        with services.fresh_database(postgres) as dsn:
            for kind, store in (("sqlite", ""), ("postgres", dsn)):
                home = folder / kind
                home.mkdir()
                use(source, home, folder, store)
                target = str(LAYOUTS / f"{name}.{kind}.backup")
                done = noetl(ROOT, "backup", target, home=home, cwd=folder, store=store)
                assert done.returncode == 0, done.stderr
                print(done.stdout.strip())


if __name__ == "__main__":
    main(*sys.argv[1:])
