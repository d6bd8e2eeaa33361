"""The registered result schemas, for completion: read from the target of the command, at most every half minute.

A target that cannot be reached has no schemas; an editor is not disturbed by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from noetl.errors import NoetlError, RequestRefused

if TYPE_CHECKING:
    from noetl.cli.backend.base import Backend
    from noetl.cli.target import Target

MAX_AGE = 30.0
FIRST_WAIT = 2.0  # a completion waits for the first answer, not for later ones


class RegisteredSchemas:
    """The JSON Schemas by reference (`orders`, `orders/v2`)."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: Mapping[str, Any] = {}
        self._references: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def get(self, references: set[str]) -> Mapping[str, Any]:
        """The newest version of each schema, and these references."""
        is_new = not references <= self._references
        if self._reading is None and (is_new or monotonic() - self._read_at > MAX_AGE):
            self._references |= references
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if self._reading is not None and (is_new or not self._known):
            await asyncio.wait([self._reading], timeout=FIRST_WAIT)
        return self._known

    async def _read(self) -> None:
        try:
            self._known = await asyncio.to_thread(self._target.call, self._from)
        except (NoetlError, OSError):
            self._known = {}
        finally:
            self._read_at = monotonic()
            self._reading = None

    async def _from(self, backend: Backend) -> Mapping[str, Any]:
        found = {}
        for each in await backend.schemas():
            found[each["name"]] = found[f"{each['name']}/v{each['version']}"] = each["schema"]
        for reference in self._references - found.keys():
            try:
                found[reference] = (await backend.schema(reference))["schema"]
            except RequestRefused:  # not registered, or not a reference
                continue
        return found
