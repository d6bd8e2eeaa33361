"""Failures of a transfer: exceptions that no driver raises, and what a rollback after a failure may raise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.tool import ToolCall

Explain = Callable[[Exception], "ErrorInfo | None"]  # the error for an exception; None for an internal error


class ExplainedError(Exception):
    """A failure of a source or target that is already described as an error."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class ResponseError(ExplainedError):
    """An HTTP request of a source or target failed."""


async def roll_back(call: ToolCall, label: str, abort: Awaitable[None]) -> None:
    """Roll back after a failure; if that fails too, it is logged, and the first failure is the one that is reported."""
    try:
        await abort
    except Exception as failure:  # noqa: BLE001 - of any driver
        reason = f"{type(failure).__name__}: {failure}"
        call.host.log(f"warning: {label} was not rolled back: {reason}", stream="stderr")
