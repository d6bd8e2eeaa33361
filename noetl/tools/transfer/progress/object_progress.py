"""A load of new objects (`only_new`), committed group by group.

The list of loaded objects is written in the transaction of the rows. So a load that is killed has committed whole
objects with their names, and the next one starts with the objects that are not in the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.progress.load_progress import Pace
from noetl.tools.transfer.transfer_plan import DATABASES

if TYPE_CHECKING:
    from noetl.tools.transfer.chunks import Mark
    from noetl.tools.transfer.targets import Target


class ObjectProgress:
    """Which objects of one load are in the list of its target."""

    def __init__(self, source: Any, target: Target) -> None:
        self._source, self._target = source, target
        self._recorded = self._committed = 0
        self._pace = Pace()

    async def read(self, targets: int, *, one_commit: bool) -> None:
        """Tell the source what was loaded before; with `one_commit`, all objects are committed together."""
        plan = self._target.plan
        if plan.kind in DATABASES and (targets > 1 or plan.warn_on_error or plan.mode == "replace"):
            raise BadInput(
                "`only_new` needs exactly one target, with mode append or upsert and without `on_error: continue`: "
                "its table and the list of loaded objects change together"
            )
        self._source.known = await self._target.loaded_objects()
        self._source.marks_objects = self._source.resumes and self._target.has_checkpoints and not one_commit

    def summary(self, *, done: bool) -> dict[str, int]:
        """The numbers of objects; of a load that has failed, those that were committed."""
        return {"loaded": len(self._source.found) if done else self._committed, "skipped": self._source.skipped}

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._pace.is_due()

    async def checkpoint(self, mark: Mark) -> None:
        """Commit the rows before a mark, with the names of their objects."""
        await self._pace.measure(self._target.checkpoint(lambda: self._record(mark.position)))
        self._committed = mark.position

    async def finish(self) -> None:
        """Write the names of all objects, in the transaction of the last rows."""
        await self._record(len(self._source.found))

    async def _record(self, end: int) -> None:
        versions = self._source.versions
        found = {each.uri: versions.get(each.uri, each.version) for each in self._source.found[self._recorded : end]}
        if found:
            await self._target.record_objects(found, self._source.known)
        self._recorded = end
