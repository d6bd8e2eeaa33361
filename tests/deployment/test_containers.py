"""The image and the compose file, as far as they can be checked without a container engine.

The Dockerfile is parsed, and the scripts of the image run here. The compose file is checked against what the program knows: its
commands, settings and files.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from noetl.settings import OTHER_VARIABLES, TABLE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
SETTINGS = {setting.variable for setting in TABLE} | OTHER_VARIABLES
ENTRYPOINT = DEPLOY / "docker" / "entrypoint.sh"


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def test_the_image_has_two_stages_and_does_not_run_as_root():
    found = instructions()
    assert [word for word, _ in found].count("FROM") == 2
    last = found[max(i for i, (word, _) in enumerate(found) if word == "FROM") :]
    assert ("USER", "10001:10001") in last
    assert [word for word, _ in last].index("USER") > max(
        i for i, (word, _) in enumerate(last) if word in ("COPY", "RUN")
    )
    assert "HEALTHCHECK" in dict(last)


def test_copied_files_exist():
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            sources = [each for each in rest.split()[:-1] if not each.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), rest


def test_the_copied_files_are_all_that_the_build_needs(tmp_path: Path):
    """The wheel can be built from the files that the first stage copies."""
    import shutil

    for name in ("requirements.lock", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs/reference/diagnostics", tmp_path / "docs/reference/diagnostics")
    shutil.copytree(ROOT / "noetl", tmp_path / "noetl", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert list((tmp_path / "dist").glob("noetl_engine-*.whl"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return {**os.environ, "NOETL_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_servers_with_the_created_keys_accept_the_same_tokens(tmp_path: Path, environ: dict[str, str]):
    from noetl.server.http.access import Tokens

    keys = tmp_path / "keys"
    create = ["sh", str(DEPLOY / "docker" / "create-keys.sh"), str(keys)]
    subprocess.run(create, env=environ, check=True, capture_output=True)
    before = {file.name: file.read_text() for file in keys.iterdir() if file.is_file()}
    assert {"tokens.json", "admin.token", "worker.token", "lease.key", "secret.key"} <= before.keys()
    assert all(stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 for file in keys.iterdir())
    subprocess.run(create, env=environ, check=True, capture_output=True)
    assert {file.name: file.read_text() for file in keys.iterdir() if file.is_file()} == before
    command = ["sh", str(ENTRYPOINT), "--version"]
    subprocess.run(command, env={**environ, "KEYS_FOLDER": str(keys)}, check=True, capture_output=True)
    tokens = Tokens.prepare(Path(environ["NOETL_HOME"]))
    for name in ("admin", "worker"):
        caller = tokens.caller(before[f"{name}.token"].strip())
        assert caller is not None and caller.role == name
    assert len(bytes.fromhex(before["lease.key"])) == 32
    assert tokens.proofs is not None


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text().replace("0o1777", "1023"))


def test_the_compose_file_has_the_parts_of_a_cluster():
    services = compose()["services"]
    assert {"postgres", "nats", "server-1", "server-2", "worker", "migrate", "keys"} == services.keys()
    assert services["worker"]["deploy"]["replicas"] >= 2
    for name in ("server-1", "server-2", "worker"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        for mount in service.get("volumes", ()):
            if isinstance(mount, str) and mount.startswith("./"):
                assert (DEPLOY / mount.split(":")[0]).exists()


def test_variables_of_the_compose_file_are_settings():
    for name, service in compose()["services"].items():
        if name not in ("postgres", "nats"):
            assert set(service.get("environment", ())) <= SETTINGS, name
    worker = compose()["services"]["worker"]
    assert not {"NOETL_STORE", "NOETL_SECRET_KEY"} & worker["environment"].keys()


def test_published_ports_are_those_of_this_machine_only():
    for service in compose()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_the_document_is_valid_json_too():
    json.dumps(compose())
