"""The database of a query on a full disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import pytest

from noetl.data.result_tables import ResultTables
from noetl.errors import StoreUnavailable


def test_a_query_that_gets_no_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(duckdb, "connect", full)
    with pytest.raises(StoreUnavailable, match=f"a file in {tmp_path}.*No space left"):
        ResultTables()
    assert not list(tmp_path.iterdir())
