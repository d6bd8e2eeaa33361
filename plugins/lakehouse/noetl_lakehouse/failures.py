"""Exceptions of deltalake and pyiceberg as error kinds."""

from __future__ import annotations

import re

from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from pyiceberg import exceptions as iceberg

from noetl.tool import ErrorInfo, error_info

_SCHEMA = (SchemaMismatchError, DeltaProtocolError, iceberg.ValidationError)
_AUTH = (iceberg.UnauthorizedError, iceberg.ForbiddenError)


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of a driver; None for other exceptions."""
    text = _one_line(str(failure)) or type(failure).__name__
    if isinstance(failure, CommitFailedError | iceberg.CommitFailedException):
        return error_info("db.deadlock", f"another writer has changed the table: {text}")
    if isinstance(failure, _AUTH):
        return error_info("auth", text)
    if isinstance(failure, _SCHEMA):
        return error_info("schema", text)
    if isinstance(failure, TableNotFoundError | iceberg.NoSuchTableError | iceberg.NoSuchNamespaceError):
        return error_info("not_found", text)
    if isinstance(failure, DeltaError | iceberg.RESTError | OSError):
        return error_info("storage.access", text)
    return error_info("schema", text) if isinstance(failure, ValueError | TypeError) else None


def _one_line(text: str) -> str:
    """A message without colours and line breaks; deltalake has one line for each cause."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return ": ".join(filter(None, (line.strip(" \t↳") for line in lines)))
