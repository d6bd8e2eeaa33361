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
from sqlalchemy.exc import DBAPIError

from noetl.tool import ErrorInfo, error_info

_SCHEMA = (SchemaMismatchError, DeltaProtocolError, iceberg.ValidationError)
_CONFLICT = (CommitFailedError, iceberg.CommitFailedException, iceberg.TableAlreadyExistsError)
_AUTH = (iceberg.UnauthorizedError, iceberg.ForbiddenError)


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of a driver; None for other exceptions."""
    cause = failure.orig if isinstance(failure, DBAPIError) else failure  # the driver's message, without the statement
    text = _one_line(str(cause)) or type(cause).__name__
    if isinstance(failure, _CONFLICT):
        return error_info("db.deadlock", f"another writer has changed the table: {text}")
    if isinstance(failure, _AUTH):
        return error_info("auth", text)
    if isinstance(failure, _SCHEMA):
        return error_info("schema", text)
    if isinstance(failure, TableNotFoundError | iceberg.NoSuchTableError | iceberg.NoSuchNamespaceError):
        return error_info("not_found", text)
    if isinstance(failure, DBAPIError):
        return error_info("storage.access", f"the catalog cannot be used: {text}")
    if isinstance(failure, DeltaError | iceberg.RESTError | OSError) or type(failure) is Exception:  # of deltalake
        return error_info("storage.access", text)
    if isinstance(failure, OverflowError):
        return error_info("schema", f"a value cannot be stored in the table: {text}")
    known = (ValueError, TypeError, iceberg.NotInstalledError)
    return error_info("schema", text) if isinstance(failure, known) else None


def _one_line(text: str) -> str:
    """A message in one line (deltalake has a line for each cause), without colours, users and queries of addresses."""
    text = re.sub(r"(?<=://)[^/\s@]*@", "", text)
    text = re.sub(r"(?<=\S)\?[^\s'\")]*=[^\s'\")]*", "", text)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return ": ".join(filter(None, (line.strip(" \t↳") for line in lines)))
