"""The process's own log: one line a record, as text or as JSON, with the ids it is about and without secrets.

Whoever works on a request or on a run says so with `about(...)`; every record that is made inside, by
our code or a library's, carries those ids (`execution_id`, `step`, `run_id`, `request_id`, ...). A
record may bring its own with `extra={...}`.

Secrets are masked where the line is made, so no caller can forget it: what looks like a token or a
password in a URL always, and the values the current run was given exactly.
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

FORMATS = ("text", "json")
IDS = ("request_id", "trace_id", "execution_id", "step", "run_id", "task", "worker", "caller")
FIELDS = (*IDS, "stream", "method", "path", "status", "duration_ms")

_ABOUT: ContextVar[Mapping[str, str]] = ContextVar("noetl_log_about", default={})  # noqa: B039 - never written to
_MASKER: ContextVar[Masker | None] = ContextVar("noetl_log_masker", default=None)

# Tokens of ours, bearer headers, and passwords inside addresses.
_TELLTALE = re.compile(
    r"noetl_[A-Za-z0-9_-]{20,}|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
)


@contextmanager
def about(masker: Masker | None = None, **ids: str) -> Iterator[None]:
    """Everything logged inside is about these ids, and hides what the masker knows."""
    named = _ABOUT.set({**_ABOUT.get(), **ids})
    masked: Token[Masker | None] | None = _MASKER.set(masker) if masker is not None else None
    try:
        yield
    finally:
        _ABOUT.reset(named)
        if masked is not None:
            _MASKER.reset(masked)


def begin(masker: Masker, ids: Mapping[str, str]) -> None:
    """From here on this task is about these ids; for tasks that do one thing after the other."""
    _ABOUT.set(ids)
    _MASKER.set(masker)


def current() -> Mapping[str, str]:
    """The ids of what is being worked on here."""
    return _ABOUT.get()


def masked(text: str) -> str:
    """The text as it may be written down."""
    masker = _MASKER.get()
    if masker:
        text = masker.mask(text)
    return _TELLTALE.sub(MASK, text)


class _Lines(logging.Formatter):
    """What both forms share: the ids of a record, its words and its trace, masked."""

    def _facts(self, record: logging.LogRecord) -> dict[str, Any]:
        facts: dict[str, Any] = dict(current())
        facts |= {name: getattr(record, name) for name in FIELDS if name in record.__dict__}
        return facts

    def _words(self, record: logging.LogRecord) -> str:
        return masked(record.getMessage())

    def _trace(self, record: logging.LogRecord) -> str | None:
        if not record.exc_info or record.exc_info[1] is None:
            return None
        return masked("".join(traceback.format_exception(record.exc_info[1])).rstrip())


class TextLines(_Lines):
    """For people: time, level, logger, words, and the ids at the end."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a trace below it where there is one."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        ids = " ".join(f"{name}={value}" for name, value in self._facts(record).items())
        line = f"{at} {record.levelname:<7} {record.name}: {self._words(record)}{f'  [{masked(ids)}]' if ids else ''}"
        trace = self._trace(record)
        return f"{line}\n{trace}" if trace else line


class JsonLines(_Lines):
    """For machines: one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """`at`, `level`, `logger`, `message`, the ids, and `exception` where there is one."""
        facts = self._facts(record)
        document: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._words(record),
            **{name: masked(value) if isinstance(value, str) else value for name, value in facts.items()},
        }
        trace = self._trace(record)
        if trace:
            document["exception"] = trace
        return msgspec.json.encode(document, enc_hook=str).decode()


def configure(format: str = "text", level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Write this process's log to a stream (stderr), in one of the two forms; replaces what was set before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for noisy in ("asyncio", "uvicorn.error", "aiohttp"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))
