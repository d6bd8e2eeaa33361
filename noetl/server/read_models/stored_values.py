"""Values of scopes that are in the result store, read for documents (the API, `noetl status`, `noetl run --json`).

A value that cannot be read (deleted by retention, or beyond `MOST` bytes in one document) stays a marker:
`{"$stored": reference}`, whose reference `GET /api/results/{ref}` downloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from noetl.core.model.reference import STORED, Reference, is_stored
from noetl.core.model.secret_names import mask_secret_names
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.server.orchestrator.request_resolver import RequestResolver
from noetl.storage.ports.results import ResultStore

MOST = 64 * 2**20


async def restored(results: ResultStore, values: Mapping[str, Any]) -> dict[str, Any]:
    """A scope with its stored values."""
    scope, left = dict(values), MOST
    for key, value in values.items():
        if is_stored(value):
            with suppress(PayloadUnavailable, StoreUnavailable, msgspec.ValidationError):
                reference = msgspec.convert(value[STORED], Reference)
                scope[key] = await RequestResolver(results, dict).hydrate(reference, left)
                left -= reference.meta.bytes
    return scope


async def with_stored_values(results: ResultStore, document: dict[str, Any]) -> dict[str, Any]:
    """A document of an execution, with the stored values of `ctx`."""
    document["ctx"] = mask_secret_names(await restored(results, document["ctx"]))
    return document


async def state_with_stored_values(results: ResultStore, document: dict[str, Any]) -> dict[str, Any]:
    """A document of a state, with the stored values of `ctx` and of the scopes of runs."""
    for scope in ("ctx", "state"):
        document[scope] = mask_secret_names(await restored(results, document[scope]))
    for run in document["runs"]:
        scopes = {name: await restored(results, scope) for name, scope in run["scopes"].items()}
        run["scopes"] = {name: mask_secret_names(scope) for name, scope in scopes.items()}
    return document
