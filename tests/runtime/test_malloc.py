"""Freed memory is returned to the operating system while a transfer needs that."""

from __future__ import annotations

import pytest

from noetl.runtime import malloc


def test_the_usual_size_of_returned_blocks_is_restored_after_the_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(malloc, "_function", lambda name: lambda option, size: sizes.append(size))
    with malloc.returning_blocks():
        with malloc.returning_blocks():
            pass
        assert sizes[-1] == malloc.RETURNED_BLOCK
    assert sizes[-1] == malloc.USUAL_BLOCK


def test_a_library_without_these_functions_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malloc, "_function", lambda name: None)
    with malloc.returning_blocks():
        malloc.release_memory()
