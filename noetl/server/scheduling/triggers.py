"""Triggers: what starts executions without a request from a user.

Every kind (schedule, webhook, nats, object, execution) has the fields of `Trigger`. What a trigger receives is
recorded as a delivery, and `deliveries` starts the execution under these rules:

    overlap      a delivery while `concurrency` executions of the trigger are running
      allow      starts another execution
      skip       is dropped
      queue      waits until one has ended
      cancel     cancels the oldest one and starts a new one

The payload of an execution is `payload` of the trigger. If that contains templates, they read the received `event`
(and the other names of the kind); otherwise the received data is merged into it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct, field

from noetl.core.model.durations import seconds
from noetl.core.model.events import instant
from noetl.core.model.merge import deep_merge
from noetl.core.templates.definitions import render_definition
from noetl.errors import RequestRefused, TemplateError, unknown
from noetl.server.orchestrator.catalog import Catalog
from noetl.storage.ports.secrets import CredentialStore
from noetl.storage.ports.triggers import StoredTrigger

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
MAX_CONCURRENCY = 10_000
MAX_KEY = 500  # bytes of an id in a key; of a longer one the digest is used

Overlap = Literal["allow", "skip", "queue", "cancel"]
T = TypeVar("T", bound="Trigger")


class Trigger(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The definition of a trigger, and what is known of its life."""

    KIND: ClassVar[str]
    DURATIONS: ClassVar[tuple[str, ...]] = ()  # fields that may be written as 90s, 15m, 2h
    INTERNAL: ClassVar[frozenset[str]] = frozenset({"id", "name", "created_at", "created_by", "problem"})

    id: str  # part of idempotency keys: a later trigger of the same name starts its own executions
    name: str
    path: str
    version: int | None = None  # None: the newest at the time of the delivery
    payload: dict[str, Any] = field(default_factory=dict)
    overlap: Overlap = "allow"
    concurrency: int = 1  # running executions above which `overlap` applies
    paused: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    created_at: float = 0.0
    created_by: str = ""
    problem: str | None = None  # why it cannot receive anything now

    def key(self, delivery: str) -> str:
        """The idempotency key of a delivery: it starts one execution, however often it arrives."""
        known = delivery.replace("\x00", "")  # databases do not store it
        if known != delivery or len(known.encode()) > MAX_KEY:  # indexes of databases have a limit
            known = known[:100] + "#" + hashlib.sha256(delivery.encode()).hexdigest()
        return f"{self.KIND}:{self.id}:{known}"

    def prepared(self: T, known: Trigger | None, now: float) -> T:
        """The trigger as it is stored, when it is new or has been edited."""
        return self

    def wake(self) -> float | None:
        """When the trigger itself has to be looked at."""
        return None

    def check(self) -> None:
        """RequestRefused when a field has a value that its type allows and its kind does not."""
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise RequestRefused(f"concurrency is a number from 1 to {MAX_CONCURRENCY}")

    def render(self, names: Mapping[str, Any], received: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of an execution; TemplateError when a template cannot be evaluated."""
        rendered: dict[str, Any] = render_definition(self.payload, dict(names))
        if rendered is not self.payload:
            return rendered
        return deep_merge(self.payload, dict(received)) if received else dict(self.payload)

    def row(self, revision: int) -> StoredTrigger:
        """The row of the trigger."""
        return StoredTrigger(self.KIND, self.name, msgspec.json.encode(self), revision, self.wake())


def define(of: type[T], name: str, fields: Mapping[str, Any], *, now: float, by: str = "", known: T | None = None) -> T:
    """A validated trigger from the fields of a definition; `known` is the one that it changes."""
    for each in fields:
        if each not in of.__struct_fields__ or each in of.INTERNAL:
            known_fields = ", ".join(sorted(set(of.__struct_fields__) - of.INTERNAL))
            raise RequestRefused(f"a trigger of kind {of.KIND} has no field {each!r}; it has {known_fields}")
    check_name(name)
    document = msgspec.to_builtins(known) if known is not None else {}
    document |= {"id": secrets.token_hex(8), "created_at": now, "created_by": by} if known is None else {}
    given = {each: value for each, value in fields.items() if value is not None or known is not None}
    document |= {"name": name, **given}
    for each in of.DURATIONS:
        if document.get(each) is not None:
            document[each] = _seconds(each, document[each])
    try:
        trigger = msgspec.convert(document, of)
    except msgspec.ValidationError as problem:
        raise RequestRefused(_reason(of, str(problem))) from None
    trigger.check()
    return trigger


def decode(of: type[T], row: StoredTrigger) -> T:
    """The trigger of a row."""
    return msgspec.json.decode(row.data, type=of)


def definition(trigger: Trigger) -> dict[str, Any]:
    """The fields that a definition may have, without defaults; `define` reads them."""
    document: dict[str, Any] = msgspec.to_builtins(trigger)
    return {name: value for name, value in document.items() if name not in trigger.INTERNAL}


def trigger_document(trigger: Trigger) -> dict[str, Any]:
    """A trigger as a JSON document."""
    document: dict[str, Any] = {"kind": trigger.KIND, **msgspec.structs.asdict(trigger)}
    del document["id"]
    document["created_at"] = instant(trigger.created_at)
    return document


def check_name(name: str) -> None:
    """RequestRefused when a name of a trigger or rule is not valid."""
    if not NAME.fullmatch(name):
        raise RequestRefused(
            f"{name!r} is not a valid name: use letters, digits, _ . and -, and begin with a letter or a digit"
        )


def check_template(trigger: Trigger, names: Mapping[str, Any], readable: str) -> None:
    """RequestRefused when the payload cannot be rendered with an example of its names."""
    try:
        trigger.render(names, {})
    except TemplateError as problem:
        raise RequestRefused(f"the payload cannot be rendered: {problem.message}; it may read {readable}") from None


async def check_registered(catalog: Catalog, path: str, version: int | None) -> None:
    """NotFound when the catalog does not have the playbook."""
    if await catalog.registered(path, version) is None:
        raise await catalog.unknown(path, version)


async def check_credential(credentials: CredentialStore | None, name: str | None) -> None:
    """RequestRefused when a trigger, webhook or rule names a credential that does not exist."""
    if name and credentials is not None and await credentials.get(name) is None:
        known = dict(await credentials.list())
        raise RequestRefused(str(unknown("credential", name, known, f"create it with `noetl credential set {name}`")))


def name_after(path: str) -> str:
    """The default name of a trigger, derived from the path of its playbook."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", path).strip("-._")[:180] or "trigger"


def _seconds(what: str, value: Any) -> float | None:
    try:
        return seconds(value)
    except ValueError:
        raise RequestRefused(f"{what} is a duration such as 90s, 15m or 2h, not {value!r}") from None


def _reason(of: type[Trigger], problem: str) -> str:
    """The message of a ValidationError: `Expected ..., got ... - at `$.cron``."""
    reason, _, place = problem.partition(" - at `$.")
    where = re.sub(r"\[.*?\]", "", place.rstrip("`"))
    if missing := re.search(r"missing required field `(\w+)`", reason):
        return f"a trigger of kind {of.KIND} needs {missing[1]}"
    if wrong := re.search(r"Invalid enum value (.*)", reason):
        hint = get_type_hints(of).get(where)
        choices = [each for inner in (hint, *get_args(hint)) for each in get_args(inner) if isinstance(each, str)]
        return f"{where} is one of {', '.join(choices)}, not {wrong[1]}" if choices else f"{where} is not {wrong[1]}"
    return f"{where or of.KIND}: {reason[:1].lower()}{reason[1:]}"
