"""Server programs for the tests of plug-ins: from PATH, else from unpacked Debian packages. Nothing is installed.

Packages are downloaded with `apt-get download` and unpacked into a cache folder (`NOETL_TEST_SERVERS`, else below
the user's cache folder).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

START_SECONDS = 60.0


class NotAvailable(Exception):
    """The program is neither installed nor can it be downloaded."""


def program(name: str, packages: Sequence[str]) -> str:
    """The path of a program that a Debian package contains."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found:
        return found
    root = _unpacked(packages, name)
    for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
        if (root / folder / name).exists():
            return str(root / folder / name)
    raise NotAvailable(f"{name} is not in the Debian packages {' '.join(packages)}")


def libraries(path: str) -> dict[str, str]:
    """The environment in which an unpacked program finds the libraries and the programs of its packages."""
    root = next((parent for parent in Path(path).parents if (parent / ".unpacked").exists()), None)
    if root is None:
        return dict(os.environ)
    folders = [str(found) for found in (*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu"))]
    programs = [str(root / folder) for folder in ("usr/bin", "usr/sbin", "bin", "sbin")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")]).strip(":"),
        "PATH": ":".join([*programs, os.environ.get("PATH", "")]).strip(":"),
    }


def _unpacked(packages: Sequence[str], name: str) -> Path:
    cache = Path(os.environ.get("NOETL_TEST_SERVERS") or Path.home() / ".cache" / "noetl-test-servers")
    root = cache / "-".join(packages)
    if (root / ".unpacked").exists():
        return root
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NotAvailable(f"{name} is not on PATH, and this is no Debian system from whose packages it can be taken")
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test runs may start at once
        if not (root / ".unpacked").exists():
            _run(["apt-get", "download", *packages], root, name)
            for archive in sorted(root.glob("*.deb")):
                _run(["dpkg", "-x", str(archive), str(root)], root, name)
                archive.unlink()
            (root / ".unpacked").touch()
    return root


def _run(command: list[str], folder: Path, name: str) -> None:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotAvailable(f"{name} is not on PATH, and `{' '.join(command[:2])}` failed: {last}")


class ServerProcess:
    """A running server; its output is in `output.log` of its folder."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.folder = folder
        self._log = folder / "output.log"
        with open(self._log, "ab") as output:
            self._process = subprocess.Popen(
                command, cwd=folder, env=libraries(command[0]), stdout=output, stderr=output, start_new_session=True
            )

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until the server answers; the end of its log is in the error if it does not."""
        end = time.monotonic() + START_SECONDS
        while not ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"the server did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server and wait for its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
