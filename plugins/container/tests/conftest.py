"""Real engines, and an image that is made offline from Debian's static busybox."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

IMAGE = "localhost/noetl-test:1"
APPLETS = ("sh", "cat", "echo", "env", "sleep", "id", "pwd", "ls", "mkdir", "dd", "true", "wc", "tail", "ip", "head")
DOCKER = ("docker.io", "containerd", "runc", "tini")  # Debian packages of the client, the daemon and what it starts
# Engines inside of other sandboxes may not raise limits, and may support only one of the two low-level runtimes.
CONFIGURATION = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n[engine]\nruntime = "runc"\n'


def _image(busybox: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in (("bin", 0o755), ("tmp", 0o1777)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            archive.addfile(folder)
        archive.add(busybox, "bin/busybox")
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return buffer.getvalue()


class _Missing(Exception):
    """What an engine lacks on this machine."""


def _asked(command: list[str], environment: Mapping[str, str], given: bytes | None = None) -> str:
    """Empty if a command of an engine succeeds; otherwise its message."""
    ran = subprocess.run(command, input=given, capture_output=True, env={**os.environ, **environment}, timeout=120)
    message = ran.stderr.decode(errors="replace").strip()
    return (message or f"{command[0]} ended with {ran.returncode}") if ran.returncode else ""


def _podman(find_program: Callable[..., str], folder: Path) -> dict[str, str]:
    """The environment in which podman runs containers."""
    if not shutil.which("podman"):
        raise _Missing("the program podman is not on PATH")
    problem = _runs("podman", {}, find_program)
    if not problem:
        return {}
    path = folder / "containers.conf"
    path.write_text(CONFIGURATION)
    environment = {"CONTAINERS_CONF": str(path)}
    again = _runs("podman", environment, find_program)
    if again:
        raise _Missing(f"podman cannot run containers: {problem}; with lower limits and runc: {again}")
    return environment


def _docker(find_program: Callable[..., str], start_server: Callable[..., object], folder: Path) -> dict[str, str]:
    """The environment in which docker runs containers: with the daemon of the machine, else with one of the tests."""
    client = find_program("docker", *DOCKER)
    environment = {"PATH": f"{Path(client).parent}:{os.environ['PATH']}"}
    unreachable = _asked(["docker", "version"], environment)
    if unreachable:
        if os.geteuid():
            raise _Missing(f"{unreachable}; the tests start a daemon of their own only as root")
        socket = f"unix://{folder}/docker.sock"
        (folder / "daemon.json").write_text("{}")
        command = [find_program("dockerd", *DOCKER), "--host", socket, "--config-file", f"{folder}/daemon.json"]
        command += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
        command += ["--storage-driver=vfs", "--bridge=none", "--iptables=false", "--ip6tables=false"]
        command += ["--default-ulimit=nofile=1024:1024", "--default-ulimit=nproc=1000:1000"]
        environment["DOCKER_HOST"] = socket
        try:
            start_server(command, folder=folder, ready=lambda: not _asked(["docker", "version"], environment))
        except RuntimeError as problem:
            raise _Missing(f"{unreachable}; a daemon of the tests: {problem}") from None
    problem = _runs("docker", environment, find_program)
    if problem:
        raise _Missing(f"docker cannot run containers: {problem}")
    return environment


def _runs(name: str, environment: dict[str, str], find_program: Callable[..., str]) -> str:
    """Empty if the engine takes the image and runs it; otherwise its message."""
    image = _image(find_program("busybox", "busybox-static"))
    return _asked([name, "import", "-", IMAGE], environment, image) or _asked(
        [name, "run", "--rm", "--network", "none", IMAGE, "true"], environment
    )


@pytest.fixture(scope="session", params=["podman", "docker"])
def engine(request, find_program, start_server, tmp_path_factory) -> Iterator[str]:
    """The name of an engine that has the image."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    try:
        environment = _podman(find_program, folder) if name == "podman" else _docker(find_program, start_server, folder)
    except _Missing as missing:
        if os.environ.get("NOETL_REQUIRE_SERVERS"):
            raise
        pytest.skip(str(missing))
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    yield name
    subprocess.run([name, "rmi", "--force", IMAGE], capture_output=True, timeout=120)
    for key, value in before.items():
        if value is None:
            del os.environ[key]
        else:
            os.environ[key] = value
