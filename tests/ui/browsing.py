"""A real Chromium, and a tab that records its errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The headless shell has no window around a page: a new tab needs a quarter of the CPU time of the complete browser.
NAMES = (
    "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
)  # fmt: skip
# Two pages that Chromium loads for every new window, then what Playwright turns off: the last list is the one that counts.
NO_FEATURES = (
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup",
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning", "AvoidCorsURLLoaderRestartOnRedirect",
    "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled", "PreconnectToSearch",
)  # fmt: skip
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-features=" + ",".join(NO_FEATURES),
)  # fmt: skip
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"


def chromium() -> str:
    """The installed browser; fails with installation instructions if there is none."""
    if os.environ.get("NOETL_SKIP_BROWSER"):
        pytest.skip("NOETL_SKIP_BROWSER is set")
    named = os.environ.get("NOETL_CHROMIUM")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            "the tests of the web page need Chromium: run `.ci/browser` (apt-get install chromium), or set "
            "NOETL_CHROMIUM to a browser, or NOETL_SKIP_BROWSER=1 to leave these tests out",
            pytrace=False,
        )
    return found


class Tab:
    """A page of the browser that records errors of the console and of scripts."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self.forgiven: tuple[str, ...] = ()
        page.set_default_timeout(20_000)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def open(self, path: str, *, token: str | None = None) -> Tab:
        """Go to a path of the page."""
        self.page.goto(self.url + path + (f"#token={token}" if token else ""))
        return self

    def sign_in(self, token: str, path: str = "/executions") -> Tab:
        """Sign in with a URL like that which `noetl dev` prints."""
        self.open(path, token=token)
        self.page.get_by_role("navigation", name="Pages").wait_for()
        return self

    def serious_violations(self, *rules: str) -> list[str]:
        """Serious and critical violations of these rules, or of all, that axe-core finds on the current page."""
        if not AXE.exists():
            pytest.fail("axe-core is not there: run `make ui` once (npm ci in ui/)", pytrace=False)
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        options = {"resultTypes": ["violations"], "preload": False, **({"runOnly": list(rules)} if rules else {})}
        found = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:160]} {each['nodes'][0]['failureSummary'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def violations_in_both_schemes(self) -> list[str]:
        """Serious violations of the page in light colours, and those of its contrast in dark ones."""
        found = self.serious_violations()
        self.page.emulate_media(color_scheme="dark")
        found += self.serious_violations("color-contrast")
        self.page.emulate_media(color_scheme="light")
        return found

    def wrong(self) -> list[str]:
        """Errors so far, without those that a test expects (a rejected request, an unreachable server)."""
        return [error for error in self.errors if not any(word in error for word in self.forgiven)]


def page_work(tab: Tab) -> Callable[[], float]:
    """A function that returns the CPU seconds of the page's main thread so far, whatever else the machine does."""
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def work() -> float:
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        return metrics["TaskDuration"]

    return work
