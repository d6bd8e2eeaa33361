from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.http.serving import Cluster
from tests.ui.browsing import FLAGS, Tab, chromium

PLAYBOOKS = Path(__file__).parent / "playbooks"


@pytest.fixture(scope="module")  # not longer: while Playwright is open, no test of this process can run a loop
def browser() -> Iterator[object]:
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server and a worker with the playbooks of these tests, and one log of 100,000 events."""
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")))
    environ = {**os.environ, "NOETL_HOME": str(cluster.home)}
    ran = subprocess.run(
        [sys.executable, "-m", "noetl", "run", str(PLAYBOOKS / "big_loop.yaml"), "--json"],
        env=environ, capture_output=True, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    try:
        cluster.start_server()
        cluster.start_worker()
        for file in sorted(PLAYBOOKS.glob("*.yaml")):
            status, answer = cluster.ask("POST", "/api/catalog/register", {"content": file.read_text()})
            assert status == 201, answer
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def started(cluster: Cluster) -> Callable[..., str]:
    """Starts a playbook of the catalog and returns its execution id."""

    def start(path: str, **payload: object) -> str:
        status, answer = cluster.ask("POST", "/api/execute", {"path": path, "payload": payload})
        assert status == 202, answer
        return answer["execution_id"]

    return start


@pytest.fixture
def new_tab(browser, cluster: Cluster) -> Iterator[Callable[..., Tab]]:
    """Creates tabs with separate sessions; after the test none of them may have an error."""
    contexts, tabs = [], []

    def make(*, width: int = 1280, height: int = 860, dark: bool = False) -> Tab:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            locale="en-GB",
            timezone_id="Europe/Amsterdam",
        )
        contexts.append(context)
        tabs.append(Tab(context.new_page(), cluster.url))
        return tabs[-1]

    yield make
    wrong = [error for tab in tabs for error in tab.wrong()]
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def tab(new_tab, cluster: Cluster) -> Tab:
    """A tab that is signed in as admin."""
    return new_tab().sign_in(cluster.token)
