"""Reads what a transfer does with bad rows: `bad_rows`, `quarantine` and `max_bad_rows` of the task and of targets."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from noetl.core.model.tool import ToolCall
from noetl.data.files import formats
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.side_fields import BAD_ROWS, KINDS
from noetl.tools.transfer.transfer_plan import (
    DATABASES,
    BadRowsPlan,
    Plan,
    TargetPlan,
    is_deferred,
    plain_strings,
    read_target,
)

_CONNECTION = ("auth", "file", "dsn", "host", "port", "user", "password", "database", "sslmode", "spec")


def with_bad_rows(call: ToolCall, plan: Plan) -> Plan:
    """The plan with what happens to bad rows of the source and of each target.

    The fields of the task are those of targets without their own. A row that the source cannot read belongs to all
    targets: it is quarantined if the task says so, or every target."""
    given, planned = call.input, plan.targets
    table = next((target for target in planned if target.kind in DATABASES or target.plugin is not None), planned[0])
    common = read_bad_rows(call, given, table, "the task")
    every = []
    for target in planned:
        own = dict(target.own_bad_rows)
        if own:
            own = {name: given[name] for name in ("quarantine", "max_bad_rows") if given.get(name) is not None} | own
        every.append(read_bad_rows(call, own, target, f"target {target.number}") if own else common)
    source = common or (every[0] if all(each is not None for each in every) else None)
    targets = tuple(target._replace(bad_rows=each) for target, each in zip(planned, every, strict=True))
    return plan._replace(targets=targets, bad_rows=source)


def quarantine_plans(plan: Plan) -> dict[str, BadRowsPlan]:
    """The quarantines of the source and the targets; those in the same place are one."""
    found: dict[str, BadRowsPlan] = {}
    for each in (plan.bad_rows, *(target.bad_rows for target in plan.targets)):
        if each is not None:
            found.setdefault(quarantine_place(each), each)
    return found


def quarantine_place(plan: BadRowsPlan) -> str:
    """What two quarantines in the same place have in common."""
    return repr((plan.quarantine.kind, sorted(plan.quarantine.fields.items(), key=str)))


def read_bad_rows(call: ToolCall, given: Mapping[str, Any], beside: TargetPlan, what: str) -> BadRowsPlan | None:
    """`bad_rows`, `quarantine` and `max_bad_rows` of a task or target; None if a bad row fails the transfer.

    A quarantine without `kind` or address is a table in the database of the target."""
    place = given.get("quarantine")
    policy = str(given.get("bad_rows") or ("fail" if place is None else "quarantine")).lower()
    if policy not in BAD_ROWS:
        raise BadInput(f"{what}: bad_rows {policy!r} is not one of {', '.join(BAD_ROWS)}")
    if policy == "fail":
        return None
    if not isinstance(place, Mapping) or not place:
        raise BadInput(f"{what}: `bad_rows: quarantine` requires `quarantine: {{kind, table|path}}`, where bad rows go")
    place = plain_strings(dict(place))
    inherits = "table" in place and not place.get("kind") and not place.get("type")
    if inherits or (KINDS.get(str(place.get("kind", "")).lower()) == beside.kind and "table" in place):
        named = {name: beside.fields[name] for name in _CONNECTION if name in beside.fields}
        place = {"kind": beside.kind, **({} if {*place} & {*_CONNECTION} else named), **place}
    plan = read_target(0, {name: each for name, each in place.items() if name not in ("mode", "key")}, "quarantine")
    if plan.kind == "http" or is_deferred(plan.fields):
        raise BadInput(f"{what}: a quarantine is a table or a file, and does not depend on `chunk`")
    is_folder = plan.kind == "object" and plan.location.endswith("/")
    if is_folder:
        name = f"{call.execution_id}-{call.idempotency_key}.{plan.fields.get('format') or 'jsonl'}"
        plan.fields["uri"] = plan.location + name
    elif plan.kind == "object":
        plan.fields.setdefault("format", formats.format_of(path=plan.location, default="jsonl"))
    modes = plan.plugin.modes if plan.plugin is not None else ("replace",) if plan.kind == "object" else ("upsert",)
    mode = "upsert" if "upsert" in modes else modes[0]
    plan = plan._replace(mode=mode, key=("id",) if mode == "upsert" else ())
    return BadRowsPlan(plan, *_most_bad_rows(given.get("max_bad_rows"), what), is_folder)


def _most_bad_rows(given: Any, what: str) -> tuple[int | None, Fraction | None]:
    """`max_bad_rows`: a number of rows, or a share of all rows such as `1%`."""
    if given is None or given == "":
        return None, None
    text = str(given).strip()
    try:
        if text.endswith("%"):
            share = Fraction(text[:-1]) / 100  # exact: 29 of 100 rows are 29%
            if 0 <= share <= 1:
                return None, share
        elif int(text) >= 0 and not isinstance(given, bool):
            return int(text), None
    except (ValueError, ZeroDivisionError):
        pass
    raise BadInput(f"{what}: max_bad_rows is a number of rows or a share such as 1%, not {given!r}")
