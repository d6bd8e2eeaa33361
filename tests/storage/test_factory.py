"""Paths in store URLs."""

import pytest

from noetl.storage.factory import sqlite_path


@pytest.mark.parametrize("url", ["sqlite:////var/noetl.db", "sqlite:///var/noetl.db", "/var/noetl.db"])
def test_an_absolute_file_may_be_written_with_three_or_four_slashes(url):
    assert sqlite_path(url) == "/var/noetl.db"
