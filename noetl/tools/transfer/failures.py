"""Exceptions of a transfer that no driver raises."""

from __future__ import annotations

from noetl.core.model.outcome import ErrorInfo


class ResponseError(Exception):
    """An HTTP request of a source or target failed."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info
