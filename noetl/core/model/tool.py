"""What a tool kind declares about itself, and what one call of it receives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Literal, Protocol

from msgspec import Struct, field, structs

from noetl.core.model.ids import idempotency_key
from noetl.core.model.outcome import Outcome
from noetl.core.model.reference import Reference

# Kinds that come from plug-ins: without the plug-in they validate with a warning and fail when reached.
PLUGIN_KINDS: dict[str, str] = {
    "snowflake": "queries on Snowflake",
    "container": "runs a container image",
    "ducklake": "tables of a DuckLake",
    "subscription": "waits for messages of a subscription",
    "agent": "asks an AI agent",
    "mcp": "calls a tool of an MCP server",
}

FieldType = Literal["any", "string", "number", "integer", "boolean", "mapping", "list", "code"]


class Field(Struct, frozen=True, omit_defaults=True):
    """One parameter of a tool kind: the validator, the docs and completion read it."""

    type: FieldType = "any"
    doc: str = ""
    required: bool = False
    aliases: tuple[str, ...] = ()  # accepted spellings, read as this field
    choices: tuple[str, ...] = ()
    raw: bool = False  # never rendered as a template (code)
    bind: bool = False  # what its expressions yield stays data (`expr.binding`): a text read as code, e.g. by a shell
    late: tuple[str, ...] = ()  # names the tool itself gives: templates that read them are left to it (`expr.late`)
    default: Any = None


class ToolSpec(Struct, frozen=True, omit_defaults=True, dict=True):
    """A tool kind: parameters, spec defaults, helpers, and whether it touches the world.

    `helpers` are the kind's own parts of the output envelope with their null values
    (`{"http": {"status": None}}`): they exist on every outcome of the kind, error or not.
    `pure` kinds change nothing outside (noop), so a start need not be on disk before they run.
    `open_fields` accepts parameters that are not declared (python's inputs).
    `suspends` kinds are carried out by the server while no worker slot is held (playbook).
    """

    kind: str
    doc: str = ""
    fields: dict[str, Field] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    spec_keys: dict[str, str] = field(default_factory=dict)  # spec key -> one line of documentation
    helpers: dict[str, dict[str, Any]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()  # other names of this kind
    pure: bool = False
    open_fields: bool = False
    suspends: bool = False
    extra: str | None = None  # the pip extra that brings its driver
    example: str = ""

    @cached_property
    def spellings(self) -> dict[str, str]:
        """Accepted spellings of fields that are not their names -> the field."""
        aliases = {alias: name for name, declared in self.fields.items() for alias in declared.aliases}
        return {alias: name for alias, name in aliases.items() if alias not in self.fields}


def named_input(spec: ToolSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters under their fields' own names; a field's own name wins over its aliases."""
    spelled = dict(given)
    if spec.spellings.keys().isdisjoint(spelled):
        return spelled
    for alias, name in spec.spellings.items():
        if alias in spelled:
            value = spelled.pop(alias)
            spelled.setdefault(name, value)
    return spelled


def with_helpers(spec: ToolSpec, outcome: Outcome) -> Outcome:
    """The outcome with every helper of its kind present, null where the tool said nothing."""
    given = outcome.helpers
    for name, nulls in spec.helpers.items():
        if name not in given or not nulls.keys() <= given[name].keys():
            break
    else:
        return outcome
    helpers = {name: {**nulls, **given.get(name, {})} for name, nulls in spec.helpers.items()}
    return structs.replace(outcome, helpers={**given, **helpers})


class Timeout(Struct, frozen=True, omit_defaults=True):
    """`spec.timeout`, in seconds; a bare number is `total`."""

    connect: float | None = None
    read: float | None = None
    total: float | None = None


class Host(Protocol):
    """What a running tool may ask of the worker that runs it."""

    def log(self, line: str, *, stream: str = "stdout") -> None:
        """Keep a line of the tool's own output (masked) for people to read."""

    def mask(self, text: str) -> str:
        """The text without secret values; before a tool cuts text it masks it, so that no half is left."""

    def progress(self, **counts: float) -> None:
        """Say how far the work is: rows, bytes, pages."""

    async def credential(self, name: str) -> Mapping[str, Any]:
        """The fields of a keychain entry or stored credential, read when it is needed."""

    async def put_result(
        self, chunks: AsyncIterator[bytes], *, content_type: str, rows: int | None = None
    ) -> Reference:
        """Stream a payload into the result store of this run."""

    def open_result(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a stored payload; the checksum is verified when all of it is read."""

    async def fetch_source(self, uri: str, *, source: Mapping[str, Any] | None = None) -> bytes:
        """The bytes of `script: {uri}`: beside the playbook, http, or an object store."""

    def resolve_path(self, path: str) -> str:
        """A path of the playbook made absolute against the folder it lives in."""

    def allows_address(self, address: str) -> bool:
        """Whether the installation's policy lets tools reach this IP address."""


class ToolCall(Struct, frozen=True, gc=False):
    """One execution of a task's tool: rendered input and everything around it.

    `task_run_id` names this attempt, `idempotency_key` is stable over the attempts of a visit.
    `scopes` are the names templates saw (workload, ctx, iter, ...), without secrets.
    """

    kind: str
    input: dict[str, Any]
    spec: dict[str, Any]
    host: Host
    execution_id: str
    step: str
    task: str
    task_run_id: str
    attempt: int = 1
    timeout: Timeout = Timeout()
    scopes: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""  # file:line:column of the task in the author's text
    code_line: int | None = None  # line of the YAML on which the first line of `code` stands, for tracebacks
    part: str = ""  # which of several effects of this one execution is meant, where a tool has several

    @property
    def idempotency_key(self) -> str:
        """A stable key for the effect: the same for all attempts of a visit."""
        return idempotency_key(self.task_run_id) + self.part


Run = Callable[[ToolCall], Awaitable[Outcome]]
