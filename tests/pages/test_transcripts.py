"""Every command of README, tutorial, how-to and comparison pages works as shown, with the built wheel in its own environment.

What a page takes for granted (a registered playbook, a running server) is prepared by `setup/PAGE.sh`; its first line says which
servers it needs. Pages of FAST run in `make test`, all of them in `make docs-test`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_install import build_wheel, install

from devcluster.servers import free_port
from tests.pages.transcript import Item, Shell, difference, items
from tests.smtp import smtp_server

ROOT = Path(__file__).resolve().parents[2]
SETUP = Path(__file__).parent / "setup"
FAST = {
    "README", "tutorial", "install", "projects", "use-an-editor", "backup-and-upgrade", "run-with-other-inputs", "prefect", "temporal",
}  # fmt: skip
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    *sorted((ROOT / "docs" / "comparison").glob("*.md")),
]
CASES = [
    pytest.param(page, marks=() if page.stem in FAST else pytest.mark.transcript, id=page.stem)
    for page in PAGES
    if any(item.command for item in items(page.read_text()))
]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("plain") / "env")


@pytest.fixture
def needs(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Starts what a page needs; returns the replacements of addresses."""
    servers = []

    def start(names: list[str]) -> dict[str, str]:
        found = {}
        for name in names:
            if name == "postgres":
                found["postgresql://noetl:password@db.example/noetl"] = request.getfixturevalue("database")
            elif name == "nats":
                found["nats://nats:4222"] = request.getfixturevalue("nats_server")
            elif name == "smtp":
                server = smtp_server()
                servers.append(server)
                shown = '"host": "mail.example.com", "username": "noetl", "password": "..."'
                found[shown] = f'"host": "127.0.0.1", "port": {server.__enter__().port}, "tls": "none"'
            else:
                raise AssertionError(f"unknown need {name!r}")
        return found

    yield start
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def shell(commands: Path, wheel: Path, tmp_path: Path) -> Iterator[Any]:
    """Starts a shell with a home and a working folder of its own."""
    opened: list[Shell] = []

    def start(replace: dict[str, str]) -> Shell:
        port = free_port()
        work = tmp_path / "work"
        work.mkdir()
        environ = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "NOETL_HOME": str(tmp_path / "home"),
            "NOETL_SERVER_PORT": str(port),
            "NOETL_PRIVATE_NETWORKS": "127.0.0.0/8",
            "PYTHONPATH": "",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheel.parent),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "CHECKOUT": str(ROOT),
        }
        server = f"http://127.0.0.1:{port}"
        own = {
            "https://noetl.example": server,
            "127.0.0.1:8642": f"127.0.0.1:{port}",
            "8643": str(free_port()),  # of a second server
            "8765": str(free_port()),  # of the APIs of the examples
            " examples/": f" {ROOT}/examples/",
            "/var/in": str(tmp_path / "in"),
            "/srv/": f"{tmp_path}/",
        }
        shell = Shell(work, environ, {**replace, **own})
        opened.append(shell)
        return shell

    yield start
    for one in opened:
        one.type(Item(0, command="unset NOETL_SERVER_URL NOETL_TOKEN; noetl worker stop; noetl server stop"))
        one.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", CASES)
def test_the_commands_of_a_page_work_as_shown(page: Path, needs, shell):
    setup = SETUP / f"{page.stem}.sh"
    prepared = setup.read_text() if setup.exists() else ""
    names = re.match(r"# needs: (.*)", prepared)
    text = page.read_text()
    open_shell = shell(needs(names[1].split() if names else []))
    wrong = []
    if prepared:
        problem = open_shell.type(
            Item(0, command=f"{(SETUP / 'functions.sh').read_text()}\nset -e\n{prepared}\nset +e")
        )
        assert problem is None, f"{setup.name}: {problem}"
    for item in items(text):
        if item.file:
            file = open_shell.work / item.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(open_shell.concrete(item.text))
        elif problem := open_shell.type(item):
            wrong.append(f"{page.name}:{item.line}: $ {item.command}\n{problem}")
    assert not wrong, "\n\n".join(wrong)


def test_pages_with_commands_are_found():
    assert len(CASES) > 25


def test_every_setup_belongs_to_a_page():
    assert {file.stem for file in SETUP.glob("*.sh")} <= {"functions", *(page.stem for page in PAGES)}


@pytest.mark.parametrize(
    ("shown", "stdout", "stderr", "found"),
    [
        (["a"], ["a"], ["anything"], None),
        (["a"], ["a", "b"], [], "not shown: 'b'"),
        (["a", "b"], ["a"], [], "not printed: 'b'"),
        (["wait", "a"], ["a"], ["wait"], None),
        (["a", "..."], ["a", "b", "c"], [], None),
        (["a", "...", "c"], ["a", "b", "c"], [], None),
        (["took 1.2 s, execution 397607503195051008"], ["took 17 ms, execution 400000000000000000"], [], None),
        (["secret  q0m4..."], ["secret     Zq81xyz"], [], None),
        (["secret  q0m4..."], ["secret     Zq81xyz more"], [], "not printed: 'secret  q0m4...'"),
    ],
)
def test_what_is_compared(shown, stdout, stderr, found):
    assert difference(shown, stdout, stderr) == found
