"""State, on every back end."""

from __future__ import annotations

import pytest

from noetl.storage.factory import open_state, open_stores
from tests.conformance.state_store import Scenario, StateStoreSuite


class _Opened(StateStoreSuite):
    url = "memory:"

    async def within(self, scenario: Scenario) -> None:
        events, _ = open_stores(self.url)
        try:
            await scenario(events, open_state(events))
        finally:
            await events.close()


class TestMemory(_Opened):
    pass


class TestSqlite(_Opened):
    @pytest.fixture(autouse=True)
    def _fresh(self, tmp_path) -> None:
        self.url = str(tmp_path / "noetl.db")


class TestPostgres(_Opened):
    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.url = database
