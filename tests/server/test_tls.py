"""A server with TLS of its own, and behind a proxy."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.http.serving import Cluster
from tests.smtp import make_certificate
from tests.waiting import until


def certificate(folder: Path) -> Path:
    folder.mkdir()
    return make_certificate(folder)


def presented(port: int) -> str:
    """The certificate that the server presents."""
    return ssl.get_server_certificate(("127.0.0.1", port))


def own(file: Path) -> str:
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(file.with_name("cert.pem").read_text()))


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Cluster, Path]]:
    folder = tmp_path / "one"
    file = certificate(folder)
    cluster = Cluster(tmp_path / "home", NOETL_SERVER_TLS_CERT=str(file))
    cluster.environ["NOETL_SERVER_URL"] = f"https://127.0.0.1:{cluster.port}"
    cluster.environ["SSL_CERT_FILE"] = str(folder / "cert.pem")
    try:
        yield cluster, file
    finally:
        cluster.stop()


def noetl(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "noetl", *words]
    return subprocess.run(command, env=cluster.environ, capture_output=True, text=True, timeout=60)


def test_commands_and_workers_use_the_server_with_tls(secure: tuple[Cluster, Path], tmp_path: Path):
    cluster, _ = secure
    started = noetl(cluster, "server", "start", "--background")
    assert started.returncode == 0, started.stderr
    try:
        assert f"https://127.0.0.1:{cluster.port}" in started.stderr
        cluster.environ["NOETL_TOKEN"] = (cluster.home / "admin.token").read_text().strip()
        assert noetl(cluster, "worker", "start", "--background").returncode == 0
        text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a}\nworkflow: [{step: start, tool: {kind: python, code: 'result = 7'}}]\n"
        (tmp_path / "a.yaml").write_text(text)
        executed = noetl(cluster, "execute", str(tmp_path / "a.yaml"), "--json")
        assert executed.returncode == 0, executed.stderr
        assert json.loads(executed.stdout)["output"]["data"] == 7
        cluster.environ.pop("SSL_CERT_FILE")
        refused = noetl(cluster, "executions")
        assert refused.returncode == 4
        assert "certificate" in refused.stderr
    finally:
        noetl(cluster, "worker", "stop")
        noetl(cluster, "server", "stop")


def test_a_renewed_certificate_is_used_without_a_restart(secure: tuple[Cluster, Path], tmp_path: Path):
    cluster, file = secure
    assert noetl(cluster, "server", "start", "--background").returncode == 0
    try:
        assert presented(cluster.port) == own(file)
        other = certificate(tmp_path / "two")
        shutil.copy(other, f"{file}.new")
        os.replace(f"{file}.new", file)
        asyncio.run(until(lambda: presented(cluster.port) == own(other)))
        file.write_text("no certificate")
        log = cluster.home / "logs" / "server.log"
        asyncio.run(until(lambda: "the previous one stays in use" in log.read_text()))
        assert presented(cluster.port) == own(other)
    finally:
        noetl(cluster, "server", "stop")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"NOETL_SERVER_TLS_CERT": "missing.pem"}, "missing.pem cannot be used (server.tls_cert): No such file"),
        ({"NOETL_SERVER_TLS_KEY": "key.pem"}, "server.tls_key is set, but server.tls_cert is not"),
        ({"NOETL_SERVER_TRUSTED_PROXIES": "proxy"}, "'proxy' is not a network"),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path: Path, settings: dict[str, str], message: str):
    answer = noetl(Cluster(tmp_path / "home", **settings), "server", "start")
    assert answer.returncode != 0
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def session_cookie(cluster: Cluster) -> str:
    """The cookie of a session that is opened through a proxy with TLS, which is on this machine."""
    body = json.dumps({"token": cluster.token}).encode()
    headers = {"Content-Type": "application/json", "X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7"}
    request = urllib.request.Request(f"{cluster.url}/api/session", data=body, headers=headers)
    with urllib.request.urlopen(request) as response:
        return str(response.headers["Set-Cookie"])


@pytest.mark.parametrize(
    ("proxies", "trusted"), [({}, False), ({"NOETL_SERVER_TRUSTED_PROXIES": "10.0.0.0/8"}, False), ({"NOETL_SERVER_TRUSTED_PROXIES": "127.0.0.1"}, True)],
    ids=["none", "others", "this one"],
)  # fmt: skip
def test_forwarded_headers_are_accepted_from_configured_addresses_only(
    tmp_path: Path, proxies: dict[str, Any], trusted: bool
):
    cluster = Cluster(tmp_path / "home", **proxies)
    try:
        cluster.start_server()
        assert ("secure" in session_cookie(cluster).lower()) == trusted
    finally:
        cluster.stop()
