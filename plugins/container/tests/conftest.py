"""Real engines, and an image that is made offline from Debian's static busybox."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

IMAGE = "localhost/noetl-test:1"
APPLETS = ("sh", "cat", "echo", "env", "sleep", "id", "pwd", "ls", "mkdir", "dd", "true", "wc", "tail", "ip", "head")
# Engines inside of other sandboxes may not raise limits, and may support only one of the two low-level runtimes.
CONFIGURATION = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n[engine]\nruntime = "runc"\n'


def _image(busybox: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(busybox, "bin/busybox")
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(folder)
    return buffer.getvalue()


def _works(name: str, **environment: str) -> str:
    """Empty if the engine runs containers; otherwise its message."""
    if not shutil.which(name):
        return "it is not installed"
    command = [name, "run", "--rm", "--network", "none", IMAGE, "true"]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)
    return ran.stderr.strip() if ran.returncode else ""


@pytest.fixture(scope="session", params=["podman", "docker"])
def engine(request, find_program, tmp_path_factory) -> Iterator[str]:
    """The name of an engine that has the image."""
    name, environment = request.param, {}
    if shutil.which(name):
        image = _image(find_program("busybox", "busybox-static"))
        subprocess.run([name, "import", "-", IMAGE], input=image, capture_output=True, timeout=120)
    problem = _works(name)
    if problem and name == "podman" and shutil.which(name):
        path: Path = tmp_path_factory.mktemp("podman") / "containers.conf"
        path.write_text(CONFIGURATION)
        environment = {"CONTAINERS_CONF": str(path)}
        problem = _works(name, **environment)
    if problem:
        if os.environ.get("NOETL_REQUIRE_SERVERS"):
            pytest.fail(f"{name}: {problem}")
        pytest.skip(f"{name}: {problem[:200]}")
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    yield name
    subprocess.run([name, "rmi", "--force", IMAGE], capture_output=True, timeout=120)
    for key, value in before.items():
        if value is None:
            del os.environ[key]
        else:
            os.environ[key] = value
