"""Triggers that receive messages, objects, custom events and ends of executions; `sources` listens for them."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

from noetl.connections.objects import parse_location
from noetl.errors import RequestRefused
from noetl.server.scheduling.triggers import Trigger
from noetl.storage.ports.events import ExecutionSummary

MAX_PATTERN = 1000


class NatsTrigger(Trigger, frozen=True, omit_defaults=True, kw_only=True):
    """Messages of a NATS subject, or of a JetStream stream (at least once, each id once)."""

    KIND: ClassVar[str] = "nats"

    subject: str = ">"
    stream: str | None = None  # None: a plain subject, whose messages are lost while no server listens
    consumer: str | None = None  # an existing durable consumer; default: one of its own
    start: Literal["new", "all"] = "new"  # of its own consumer: which messages of the stream
    url: str = ""
    credential: str = ""  # fields of the connection, such as url, user, password, token

    @property
    def durable(self) -> str:
        """The name of the durable consumer."""
        return self.consumer or f"noetl-{self.id}"

    def check(self) -> None:
        """RequestRefused when there is no server to connect to."""
        super().check()
        if not self.url and not self.credential:
            raise RequestRefused("a trigger of kind nats needs url (nats://host:4222) or credential")
        if "@" in self.url:
            raise RequestRefused("url must not contain a user or a password; store them as a credential")
        if self.consumer is not None and self.stream is None:
            raise RequestRefused("consumer is the name of a durable consumer of a stream; give stream as well")
        if not self.subject or any(each.isspace() for each in self.subject):
            raise RequestRefused(f"{self.subject!r} is not a subject of NATS")

    def payload_of(self, data: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of a message: a JSON object as it is, anything else as field `body`."""
        received = data if isinstance(data, dict) else {"body": data}
        return self.render({"event": {**event, "data": data}}, received)


class ObjectTrigger(Trigger, frozen=True, omit_defaults=True, kw_only=True):
    """New or changed objects below a prefix of S3, GCS or Azure, or files of a folder."""

    KIND: ClassVar[str] = "object"
    DURATIONS: ClassVar[tuple[str, ...]] = ("poll", "settle")
    INTERNAL: ClassVar[frozenset[str]] = Trigger.INTERNAL | {"cursor"}

    url: str  # s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or a folder
    glob: str = "*"  # of the name below the prefix
    changed: bool = True  # also objects whose content changed
    existing: bool = False  # also objects that are older than the trigger
    poll: float = 30.0  # seconds between listings; a folder is watched as well
    settle: float = 1.0  # seconds that a file must stay unchanged
    credential: str = ""
    cursor: float = 0.0  # objects that are older have been seen

    @property
    def is_folder(self) -> bool:
        """Whether the objects are files of this machine."""
        return parse_location(self.url).scheme == "file"

    def check(self) -> None:
        """RequestRefused when the address is not one of a store."""
        super().check()
        try:
            place = parse_location(self.url)
        except ValueError as problem:
            raise RequestRefused(str(problem)) from None
        if place.scheme == "file" and not self.url.removeprefix("file://").startswith("/"):
            raise RequestRefused(f"{self.url!r} is not the absolute path of a folder")
        if not 0.05 <= self.poll <= 86_400 or not 0 <= self.settle <= 3600:
            raise RequestRefused("poll is from 50ms to 1d, and settle at most 1h")

    def wants(self, name: str) -> bool:
        """Whether the name of an object, relative to the address, matches."""
        return fnmatchcase(name, self.glob) or fnmatchcase(name.rpartition("/")[2], self.glob)


class ExecutionTrigger(Trigger, frozen=True, omit_defaults=True, kw_only=True):
    """Ends of executions of other playbooks."""

    KIND: ClassVar[str] = "execution"

    of: str  # pattern of paths: `reports/*`
    status: tuple[Literal["success", "failed", "cancelled"], ...] = ("success",)

    def check(self) -> None:
        """RequestRefused when it can match nothing."""
        super().check()
        if not self.of or len(self.of) > MAX_PATTERN or not self.status:
            raise RequestRefused("of is a pattern of paths such as reports/*, and status has at least one status")

    def wants(self, ended: ExecutionSummary) -> bool:
        """Whether the end of an execution matches; its own executions never do."""
        own = ended.key is not None and ended.key.startswith(f"{self.KIND}:{self.id}:")
        return not own and ended.status in self.status and fnmatchcase(ended.path, self.of)


class CustomEventTrigger(Trigger, frozen=True, omit_defaults=True, kw_only=True):
    """Custom events (`spec.policy.emit.events`) of executions of other playbooks."""

    KIND: ClassVar[str] = "event"

    event: str  # pattern of names: `order_paid`, `order_*`; a leading `custom.` is not part of it
    of: str = "*"  # pattern of paths

    def check(self) -> None:
        """RequestRefused when it can match nothing."""
        super().check()
        if not self.event or len(self.event) > MAX_PATTERN or not self.of or len(self.of) > MAX_PATTERN:
            raise RequestRefused(
                "event is a pattern of names such as order_*, and of a pattern of paths such as shop/*"
            )

    def wants(self, execution: ExecutionSummary, name: str) -> bool:
        """Whether an event of an execution matches; those of its own executions never do."""
        own = execution.key is not None and execution.key.startswith(f"{self.KIND}:{self.id}:")
        matches = fnmatchcase(name, self.event.removeprefix("custom."))
        return not own and matches and fnmatchcase(execution.path, self.of)
