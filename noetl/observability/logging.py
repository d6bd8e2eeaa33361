"""The log of a process: one record per line, as text or JSON, with context ids and with secrets masked.

`log_context(...)` sets the ids of the current request or run (`execution_id`, `step`, `run_id`, `request_id`, ...);
every record of this package or a library inside it carries them. A record can add ids with `extra={...}`.

Secrets are masked by the formatter, so no caller can forget it: tokens and passwords in URLs by pattern, and the
secret values of the current run exactly.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from noetl.runtime.masking import MASK, Masker
from noetl.runtime.printable import printable, printable_json

FORMATS = ("text", "json")
IDS = ("request_id", "trace_id", "execution_id", "step", "run_id", "task", "worker", "caller")
REQUEST = ("method", "path", "status")  # of a request; also in the message of its record
FIELDS = (*IDS, "stream", *REQUEST, "duration_ms")

_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar("noetl_log_about", default={})  # noqa: B039 - never written to
_MASKER: ContextVar[Masker | None] = ContextVar("noetl_log_masker", default=None)

# NoETL tokens, bearer headers, and passwords in URLs.
_SECRET_PATTERN = re.compile(
    r"noetl_[A-Za-z0-9_-]{20,}|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
)


@contextmanager
def log_context(masker: Masker | None = None, **ids: str) -> Iterator[None]:
    """Add ids and a masker to all records inside the block."""
    context = _CONTEXT.set({**_CONTEXT.get(), **ids})
    masked: Token[Masker | None] | None = _MASKER.set(masker) if masker is not None else None
    try:
        yield
    finally:
        _CONTEXT.reset(context)
        if masked is not None:
            _MASKER.reset(masked)


def set_log_context(masker: Masker, ids: Mapping[str, str]) -> None:
    """Replace ids and masker of the current asyncio task; for tasks that execute one run after another."""
    _CONTEXT.set(ids)
    _MASKER.set(masker)


def current() -> Mapping[str, str]:
    """The ids of the current context."""
    return _CONTEXT.get()


def masked(text: str) -> str:
    """The text with secrets masked."""
    masker = _MASKER.get()
    if masker:
        text = masker.mask(text)
    return _SECRET_PATTERN.sub(MASK, text)


class _Formatter(logging.Formatter):
    """Common parts of both formatters: ids, message and traceback of a record, masked."""

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields: dict[str, Any] = dict(current())
        fields |= {name: getattr(record, name) for name in FIELDS if name in record.__dict__}
        return fields

    def _message(self, record: logging.LogRecord) -> str:
        return printable(masked(record.getMessage()), one_line=True)

    def _traceback(self, record: logging.LogRecord) -> str | None:
        if not record.exc_info or record.exc_info[1] is None:
            return None
        return printable(masked("".join(traceback.format_exception(record.exc_info[1])).rstrip()))


class TextFormatter(_Formatter):
    """Text: time, level, logger, message, and the ids at the end."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, followed by the traceback if there is one."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        ids = " ".join(f"{name}={value}" for name, value in self._fields(record).items() if name not in REQUEST)
        shown = f"  [{printable(masked(ids), one_line=True)}]" if ids else ""
        line = f"{at} {record.levelname:<7} {record.name}: {self._message(record)}{shown}"
        trace = self._traceback(record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """`at`, `level`, `logger`, `message`, the ids, and `exception` if there is one."""
        fields = self._fields(record)
        document: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
            **{name: masked(value) if isinstance(value, str) else value for name, value in fields.items()},
        }
        trace = self._traceback(record)
        if trace:
            document["exception"] = trace
        return printable_json(msgspec.json.encode(document, enc_hook=str).decode())


def configure(
    format: str = "text",
    level: int = logging.INFO,
    stream: TextIO | None = None,
    handler: logging.Handler | None = None,
) -> None:
    """Write the log to a stream (default stderr) in one of the two formats; replaces existing handlers."""
    handler = handler or logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for noisy in ("asyncio", "uvicorn.error", "aiohttp"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))
