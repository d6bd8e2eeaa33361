"""Notification rules: for which occurrences, and to which channel.

    on            failed        an execution failed
                  late          the execution of a schedule's tick has not succeeded by the schedule's deadline
                  waiting       an execution waits for an answer
                  recovered     an execution succeeded after one of the same playbook failed or was late
                  dead_trigger  a trigger cannot receive anything, or could not start an execution
                  event:NAME    a step emitted a custom event of this name, which may be a pattern (`event:order_*`)
    paths         patterns of playbook paths
    labels        labels that the playbook (`metadata.labels`) or the trigger must have

A rule has one channel: `mail`, `slack` (a webhook of Slack, Mattermost, Teams workflows, ...) or `http`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta, Struct, field

from noetl.core.model.durations import seconds
from noetl.core.model.events import instant
from noetl.core.templates.definitions import compile_definition, render_definition
from noetl.errors import Conflict, NotFound, RequestRefused, TemplateError, unknown
from noetl.runtime.clock import Clock
from noetl.server.scheduling.triggers import check_credential, check_name
from noetl.storage.ports.secrets import CredentialStore
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

KIND = "notification"
MAX_ATTEMPTS = 20
GROUP_SECONDS = 60.0

Occurrence = Literal["failed", "late", "waiting", "recovered", "dead_trigger"]
EVENT = "event:"  # before the name of a custom event, or a pattern of names
MAX_PATTERN = 200
Wanted = Annotated[str, Meta(pattern=r"^(failed|late|waiting|recovered|dead_trigger|event:\S.*)$")]
OCCURRENCES = ", ".join((*get_args(Occurrence), "event:NAME"))  # in messages


class MailChannel(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag="mail", tag_field="kind"):
    """A mail; the credential has the fields of kind `mail`."""

    to: tuple[str, ...]
    credential: str
    sender: str = field(default="", name="from")


class SlackChannel(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag="slack", tag_field="kind"):
    """A message `{"text": ...}` to the address in the field `url` of the credential."""

    credential: str


class HttpChannel(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag="http", tag_field="kind"):
    """A request; `body` is a template of a JSON document that reads `notification`."""

    url: str
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    body: Any = "{{ notification }}"
    credential: str = ""  # `token` becomes `Authorization: Bearer`, `headers` are sent as they are


Channel = MailChannel | SlackChannel | HttpChannel


class Incident(Struct, frozen=True, omit_defaults=True):
    """One occurrence that rules may match."""

    on: str  # an Occurrence, or `event:` and the name of a custom event
    key: str  # unique: the same occurrence is reported once to a rule
    path: str
    at: float
    title: str  # one line
    labels: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


class Rule(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A notification rule."""

    INTERNAL: ClassVar[frozenset[str]] = frozenset({"id", "name", "created_at", "created_by"})

    id: str
    name: str
    on: tuple[Wanted, ...]
    to: Channel
    paths: tuple[str, ...] = ("*",)
    labels: dict[str, str] = field(default_factory=dict)
    group: float = GROUP_SECONDS  # seconds; what occurs within them after a message is one message
    answer_url: str = ""  # address of the server in links that let the recipients answer waits; empty: no links
    paused: bool = False
    created_at: float = 0.0
    created_by: str = ""

    @property
    def event_patterns(self) -> list[str]:
        """The custom events that it wants."""
        return [each.removeprefix(EVENT) for each in self.on if each.startswith(EVENT)]

    def wants(self, incident: Incident) -> bool:
        """Whether an occurrence matches; custom events only since the rule exists."""
        if incident.on.startswith(EVENT):
            name = incident.on.removeprefix(EVENT)
            matches = incident.at >= self.created_at and any(fnmatchcase(name, each) for each in self.event_patterns)
        else:
            matches = incident.on in self.on
        return (
            not self.paused
            and matches
            and any(fnmatchcase(incident.path, pattern) for pattern in self.paths)
            and all(incident.labels.get(name) == value for name, value in self.labels.items())
        )


class Rules:
    """The notification rules of an installation."""

    def __init__(self, store: TriggerStore, clock: Clock, credentials: CredentialStore | None = None) -> None:
        self.changes = 0  # of this process
        self._store = store
        self._clock = clock
        self._credentials = credentials  # without them credentials are not checked

    async def add(self, name: str, fields: Mapping[str, Any], *, by: str = "") -> Rule:
        """Store a new rule; Conflict when the name exists."""
        rule = await self._define(name, fields, by)
        await self._store.add(StoredTrigger(KIND, name, msgspec.json.encode(rule)))
        self.changes += 1
        return rule

    async def put(self, name: str, fields: Mapping[str, Any], *, by: str = "") -> Rule:
        """Store a rule with exactly this definition."""
        for _ in range(MAX_ATTEMPTS):
            row = await self._store.get(KIND, name)
            if row is None:
                return await self.add(name, fields, by=by)
            known = msgspec.json.decode(row.data, type=Rule)
            kept = {"id": known.id, "created_at": known.created_at, "created_by": known.created_by}
            rule = msgspec.structs.replace(await self._define(name, fields, by), **kept)
            if await self._store.save(StoredTrigger(KIND, name, msgspec.json.encode(rule), row.revision + 1)):
                self.changes += 1
                return rule
        raise Conflict(f"notification rule {name!r} was changed at the same time by another request; try again")

    async def _define(self, name: str, fields: Mapping[str, Any], by: str) -> Rule:
        rule = define_rule(name, fields, now=self._clock.now(), by=by)
        await check_credential(self._credentials, rule.to.credential)
        return rule

    async def get(self, name: str) -> Rule:
        """The rule of a name; NotFound when there is none."""
        row = await self._store.get(KIND, name)
        if row is None:
            raise await self._unknown(name)
        return msgspec.json.decode(row.data, type=Rule)

    async def remove(self, name: str) -> None:
        """Remove a rule; what it has not sent yet is dropped."""
        self.changes += 1
        if not await self._store.remove(KIND, name):
            raise await self._unknown(name)

    async def _unknown(self, name: str) -> NotFound:
        known = [row.name for row in await self._store.list(KIND, limit=1000)]
        return unknown("notification rule", name, known, "`noetl notify list` shows all")

    async def definition(self, name: str) -> dict[str, Any] | None:
        """The definition of a rule without its defaults; None when there is no such rule."""
        try:
            document: dict[str, Any] = msgspec.to_builtins(await self.get(name))
        except NotFound:
            return None
        return {name: value for name, value in document.items() if name not in Rule.INTERNAL}

    async def all(self) -> list[Rule]:
        """All rules, by name."""
        found: list[Rule] = []
        while page := await self.list(after=found[-1].name if found else None, limit=1000):
            found += page
        return found

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Rule]:
        """One page of rules, by name."""
        return [
            msgspec.json.decode(row.data, type=Rule) for row in await self._store.list(KIND, after=after, limit=limit)
        ]


def define_rule(name: str, fields: Mapping[str, Any], *, now: float, by: str = "") -> Rule:
    """A validated rule from the fields of a definition."""
    check_name(name)
    for each in fields:
        if each not in Rule.__struct_fields__ or each in Rule.INTERNAL:
            names = ", ".join(sorted(set(Rule.__struct_fields__) - Rule.INTERNAL))
            raise RequestRefused(f"a notification rule has no field {each!r}; it has {names}")
    document = {**fields, "id": secrets.token_hex(8), "name": name, "created_at": now, "created_by": by}
    for many in ("on", "paths"):
        if isinstance(document.get(many), str):
            document[many] = [document[many]]
    if isinstance(document.get("on"), list | tuple):
        document["on"] = [_occurrence(each) for each in document["on"]]
    to = document.get("to")
    if isinstance(to, Mapping) and isinstance(to.get("to"), str):
        document["to"] = {**to, "to": [to["to"]]}
    try:
        if "group" in document:
            document["group"] = seconds(document["group"])
        rule = msgspec.convert(document, Rule)
    except ValueError as problem:  # includes msgspec.ValidationError
        raise RequestRefused(_reason(str(problem))) from None
    check(rule)
    return rule


def _occurrence(value: Any) -> Any:
    """An occurrence in its canonical form: `event:custom.paid` is `event:paid`."""
    if isinstance(value, str) and value.startswith(EVENT):
        pattern = value.removeprefix(EVENT).removeprefix("custom.").strip()
        if not pattern or len(pattern) > MAX_PATTERN:
            raise RequestRefused("event: needs the name of a custom event, or a pattern such as event:order_*")
        return EVENT + pattern
    if value not in get_args(Occurrence):
        raise RequestRefused(f"on is one of {OCCURRENCES}, not {value!r}")
    return value


def check(rule: Rule) -> None:
    """RequestRefused when a rule can match or send nothing."""
    from noetl.connections.mail import Mail, MailFailure, compose

    if not rule.on:
        raise RequestRefused(f"on needs at least one of {OCCURRENCES}")
    if not 0 <= rule.group <= 86_400:
        raise RequestRefused("group is a duration of at most 1d")
    if rule.answer_url and not rule.answer_url.startswith(("http://", "https://")):
        raise RequestRefused("answer_url is the address of the server, such as https://noetl.example.com")
    if isinstance(rule.to, MailChannel):
        try:
            compose(Mail(to=rule.to.to, subject="", sender=rule.to.sender or "noetl@localhost"))
        except MailFailure as problem:
            raise RequestRefused(str(problem)) from None
    elif isinstance(rule.to, HttpChannel):
        if not rule.to.url.startswith(("http://", "https://")):
            raise RequestRefused(f"{rule.to.url!r} is not an http or https URL")
        try:
            compile_definition(rule.to.body)
            if not rule.event_patterns:  # the data of custom events is not known here
                render_definition(rule.to.body, {"notification": example()})
        except TemplateError as problem:
            raise RequestRefused(f"the body cannot be rendered: {problem.message}; it reads `notification`") from None


def example() -> dict[str, Any]:
    """A notification for checks of templates and tests of channels."""
    item = {"on": "failed", "path": "example/playbook", "title": "a test", "at": instant(0.0), "labels": {}}
    return {"rule": "test", "on": "failed", "count": 1, "subject": "a test", "text": "a test", "items": [item]}


def rule_document(rule: Rule) -> dict[str, Any]:
    """A rule as a JSON document."""
    document: dict[str, Any] = {**msgspec.structs.asdict(rule), "to": msgspec.to_builtins(rule.to)}
    del document["id"]
    document["created_at"] = instant(rule.created_at)
    return document


def _reason(problem: str) -> str:
    reason, _, place = problem.partition(" - at `$.")
    where = re.sub(r"\[.*?\]", "", place.rstrip("`"))
    if missing := re.search(r"missing required field `(\w+)`", reason):
        return f"{where or 'a notification rule'} needs {missing[1]}"
    if "Invalid value" in reason and where == "to.kind":
        return "to.kind is mail, slack or http"
    return f"{where}: {reason[:1].lower()}{reason[1:]}" if where else reason
