"""Fixtures that all tests share: the real servers.

`postgres`, `nats_server` and `s3` start their server at first use, once for all pytest workers of
a run; `database` and `bucket` are empty ones for a single test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster import services

LONG = ("ui", "testing", "cli", "chaos", "e2e")  # folders with files that take tens of seconds, longest first
INTEGRATION_FOLDERS = (
    "install",
    "ui",
    "testing",
    "cli",
    "chaos",
    "e2e",
    "acceptance",
    "bench",
    "architecture",
    "server/http",
)
INTEGRATION_FIXTURES = {"postgres", "database", "nats_server", "s3", "bucket"}
SERVICES = re.compile(r"\b(postgres|nats|s3|Postgres|Nats|S3)\b")  # in the id of a parametrised test
SLOW_FILES = {
    "test_properties.py",
    "test_equivalence.py",
    "test_memory.py",
    "test_fuzz.py",
    "test_pipeline_handover.py",
    "test_binding.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files so that short ones run last, and mark tests that need servers, a browser or subprocesses."""
    here = Path(__file__).parent
    rank = {folder: number for number, folder in enumerate(LONG)}
    for item in items:
        folder = item.path.parent.relative_to(here).as_posix()
        fixtures = set(getattr(item, "fixturenames", ()))
        if folder.startswith(INTEGRATION_FOLDERS) or INTEGRATION_FIXTURES & fixtures or SERVICES.search(item.nodeid):
            item.add_marker("integration")
        if item.path.name in SLOW_FILES:
            item.add_marker("slow")
    items.sort(key=lambda item: rank.get(item.path.relative_to(here).parts[0], len(LONG)))


def _key() -> str:
    return os.environ.get("PYTEST_XDIST_TESTRUNUID", f"alone-{os.getpid()}")


@pytest.fixture(scope="session")
def postgres() -> dict[str, Any]:
    """Host, port, user and password of a running Postgres."""
    return services.shared("postgres", _key())


@pytest.fixture
def database(postgres: dict[str, Any]) -> Iterator[str]:
    """The DSN of an empty Postgres database."""
    with services.fresh_database(postgres) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def nats_server() -> str:
    """The URL of a running NATS server with JetStream; use names of your own in it."""
    url: str = services.shared("nats", _key())["url"]
    return url


@pytest.fixture(scope="session")
def s3() -> dict[str, Any]:
    """`endpoint`, `access_key_id`, `secret_access_key` and `region` of a running S3 API."""
    return services.shared("s3", _key())


@pytest.fixture
def bucket(s3: dict[str, Any]) -> Iterator[str]:
    """The name of an empty bucket."""
    with services.fresh_bucket(s3) as name:
        yield name
