from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.http.serving import Cluster
from tests.ui.browsing import ROOT, Tab


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server and a worker of eight slots over an empty home."""
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")), NOETL_SLOTS="8")
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def opened(new_tab: Callable[..., Tab], cluster: Cluster) -> Callable[..., Tab]:
    """Opens a path of the page in a new tab, signed in."""

    def opened(path: str, *, token: str | None = None, **look: object) -> Tab:
        return new_tab(**look).sign_in(token or cluster.token, path)

    return opened


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """Longer timeouts, for a machine that runs other tests."""
    from playwright.sync_api import expect

    expect.set_options(timeout=20_000)


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[Tab, str], None]:
    """Takes a screenshot of a tab; `make screenshots` stores it in the docs."""
    folder = ROOT / "docs" / "images" if os.environ.get("NOETL_SCREENSHOTS") else tmp_path

    def picture(tab: Tab, name: str) -> None:
        tab.page.screenshot(path=folder / f"{name}.png", animations="disabled")

    return picture
