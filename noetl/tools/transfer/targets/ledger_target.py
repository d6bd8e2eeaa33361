"""Tables whose database also keeps what transfers have loaded into them.

The progress of a load and the list of loaded objects (`only_new`) are tables beside the rows. They are written in the
transaction of the rows: after a crash, either both are there or neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from noetl.core.model.events import instant
from noetl.data.sql import quote_name
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.failures import ExplainedError
from noetl.tools.transfer.progress.load_progress import conflict
from noetl.tools.transfer.targets import Target

OBJECTS = "noetl_loaded_objects"
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {quote_name(OBJECTS)} (target text NOT NULL, object text NOT NULL, "
    "version text NOT NULL, loaded_at text NOT NULL, PRIMARY KEY (target, object))"
)
SELECT = f"SELECT object, version FROM {quote_name(OBJECTS)} WHERE target = ?"
INSERT = f"INSERT INTO {quote_name(OBJECTS)} (target, object, version, loaded_at) VALUES "
REPLACE = " ON CONFLICT (target, object) DO UPDATE SET version = excluded.version, loaded_at = excluded.loaded_at"
BATCH = 500  # objects in one statement


class LedgerTarget(Target):
    """A table in a database that keeps the list of the loaded objects."""

    remembers = True
    has_checkpoints = True

    def writable(self, table: Any, generated: Iterable[str]) -> Any:
        """The rows without columns whose values the database computes, unless one is a key."""
        computed = {self.identifier(name) for name in generated} - {self.identifier(name) for name in self.plan.key}
        return table.drop_columns([name for name in table.schema.names if self.identifier(name) in computed])

    async def lock_ledger(self) -> None:
        """Let other transfers from objects into this table wait until this one ends."""

    async def loaded_objects(self) -> dict[str, str]:
        """The objects that were loaded into this table, and their versions."""
        await self.lock_ledger()
        if not await self.open_ledger(OBJECTS, CREATE):
            raise BadInput(f"{self.plan.label}: `only_new` needs the table {OBJECTS}, and this user may not create it")
        return dict(await self.run_sql(SELECT, [str(self.plan.fields["table"])]))

    async def record_objects(self, found: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Add objects to the list; `known` has the versions that were in it when this transfer chose the objects."""
        table, now = str(self.plan.fields["table"]), instant(time.time())
        objects = list(found)
        for start in range(0, len(objects), BATCH):
            names = objects[start : start + BATCH]
            marks = ", ".join("?" * len(names))
            listed = dict(await self.run_sql(f"{SELECT} AND object IN ({marks})", [table, *names]))
            if listed != {name: known[name] for name in names if name in known}:
                raise ExplainedError(conflict("another execution has loaded some of these objects at the same time"))
            rows = ", ".join(["(?, ?, ?, ?)"] * len(names))
            values = [value for name in names for value in (table, name, found[name], now)]
            await self.run_sql(f"{INSERT}{rows}{REPLACE} RETURNING object", values)
