"""Install a wheel with pip into a new virtual environment of the running Python, and use it: `check_install.py WHEEL EXAMPLES FOLDER`.

Needs nothing but the standard library, so that it runs with any Python, also in a container or another root. Packages come from the
index that pip is configured for. Prints the result of each check; exits with 1 if one fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from pathlib import Path


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Install:
    """The virtual environment with the wheel."""

    def __init__(self, wheel: Path, examples: Path, folder: Path) -> None:
        self.examples = folder / "examples"
        shutil.copytree(examples, self.examples)
        began = time.monotonic()
        venv.create(folder / "env", with_pip=True)
        self.bin = folder / "env" / "bin"
        pip = [self.bin / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel]
        subprocess.run(pip, check=True)
        self.seconds = time.monotonic() - began
        self.environ = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("NOETL_", "PYTHON", "VIRTUAL_ENV"))
            },
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "NOETL_HOME": str(folder / "home"),
            "NOETL_SERVER_PORT": str(free_port()),
        }

    def run(self, *command: str) -> str:
        """The stdout of a command that must succeed without a warning of Python."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.examples,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode or "Warning:" in done.stderr:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    # ── checks ──────────────────────────────────────────────────────────────────────────

    def version(self) -> None:
        assert self.run("noetl", "--version").startswith("noetl ")

    def complete(self) -> None:
        found = {each["check"]: each for each in json.loads(self.run("noetl", "doctor", "--json"))}
        assert found["packages"]["status"] == "ok", found["packages"]

    def hello(self) -> None:
        assert self.run("noetl", "run", "hello.yaml")

    def quickstart(self) -> None:
        assert '"orders":600' in self.run("python", "quickstart/run.py")

    def tests_of_playbooks(self) -> None:
        self.run("noetl", "new", "first")
        self.run("noetl", "test", "first")

    def server_with_page(self) -> None:
        process = subprocess.Popen(
            [self.bin / "noetl", "dev"], cwd=self.examples, env=self.environ, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            url = next(found[1] for line in process.stderr if (found := re.search(r"running at (\S+)", line)))
            with urllib.request.urlopen(url, timeout=30) as page:
                assert b"<html" in page.read()
            self.run("noetl", "register", "hello.yaml")
            self.run("noetl", "execute", "examples/hello", "--server", url)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 0


CHECKS = (
    Install.version,
    Install.complete,
    Install.hello,
    Install.quickstart,
    Install.tests_of_playbooks,
    Install.server_with_page,
)


def main(wheel: str, examples: str, folder: str) -> int:
    """Run all checks and return the exit code."""
    install = Install(Path(wheel).resolve(), Path(examples).resolve(), Path(folder).resolve())
    print(f"Python {sys.version.split()[0]}: installed in {install.seconds:.0f} s", flush=True)
    failed = 0
    for check in CHECKS:
        try:
            check(install)
            print(f"{check.__name__}: ok", flush=True)
        except (AssertionError, OSError, StopIteration, subprocess.SubprocessError) as problem:
            failed = 1
            print(f"{check.__name__}: failed: {problem}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
