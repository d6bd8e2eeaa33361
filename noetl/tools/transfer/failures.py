"""Exceptions of a transfer that no driver raises."""

from __future__ import annotations

from noetl.core.model.outcome import ErrorInfo


class ExplainedError(Exception):
    """A failure of a source or target that is already described as an error."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class ResponseError(ExplainedError):
    """An HTTP request of a source or target failed."""
