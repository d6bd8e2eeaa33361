"""Tool kinds: the declaration of a kind, the input of one call, and calls that a cluster executes (a runtime)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Literal, Protocol

from msgspec import Struct, field, structs

from noetl.core.model.excerpt import written
from noetl.core.model.ids import idempotency_key
from noetl.core.model.outcome import Outcome
from noetl.core.model.reference import Reference

# Kinds of plug-ins: without the plug-in they validate with a warning and fail at run time.
PLUGIN_KINDS: dict[str, str] = {
    "snowflake": "queries on Snowflake",
    "container": "runs a container image",
    "ducklake": "tables of a DuckLake",
    "subscription": "waits for messages of a subscription",
    "agent": "calls an AI agent",
    "mcp": "calls a tool of an MCP server",
    "mysql": "queries on MySQL and MariaDB",
    "redis": "commands of Redis",
    "kafka": "messages of Kafka",
    "sftp": "files of an SFTP server",
    "clickhouse": "queries on ClickHouse",
    "bigquery": "queries on BigQuery",
    "adbc": "queries through an ADBC driver",
    "quantum": "quantum circuits",
}
PLUGIN_SIDES = frozenset({*PLUGIN_KINDS, "delta", "iceberg"})  # of sources and targets of transfers
# The packages of those that are maintained with noetl.
_OURS = ("container", "mysql", "redis", "kafka", "sftp", "clickhouse", "quantum")
PLUGIN_PACKAGES = {kind: f"noetl-{kind}" for kind in _OURS}
PLUGIN_PACKAGES |= {kind: f"noetl-adbc[{kind}]" for kind in ("snowflake", "bigquery")} | {"adbc": "noetl-adbc"}
PLUGIN_PACKAGES |= dict.fromkeys(("delta", "iceberg"), "noetl-lakehouse")


def install_hint(kind: str) -> str:
    """How to install the plug-in of a kind; empty if it is not maintained with noetl."""
    return f"install the package {PLUGIN_PACKAGES[kind]}" if kind in PLUGIN_PACKAGES else ""


FieldType = Literal["any", "string", "number", "integer", "boolean", "mapping", "list", "code"]


class Field(Struct, frozen=True, omit_defaults=True):
    """One parameter of a tool kind, used by the validator, the documentation and completion."""

    type: FieldType = "any"
    doc: str = ""
    required: bool = False
    accepts: tuple[FieldType, ...] = ()  # of a field of type `any`: the types of its literals, if it has several
    aliases: tuple[str, ...] = ()  # other accepted names of this field
    choices: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # other accepted spellings of the choices
    raw: bool = False  # never rendered as a template (code)
    bind: bool = False  # executed as code, e.g. by a shell: values of its expressions stay data (`templates.binding`)
    # Names local files, or its members do, or it is a mapping of names to files: values of its expressions stay in
    # their folder (`templates.paths`).
    files: bool | Literal["members", "names"] = False
    late: tuple[str, ...] = ()  # names that the tool provides; templates that read them are deferred to it
    default: Any = None
    or_input: bool = False  # under `input`, a value of another type is a value for the code
    least: float | None = None  # the smallest number
    most: float | None = None  # the largest number
    schemes: tuple[str, ...] = ()  # of a URL
    pattern: str = ""  # of the whole text, in lower case and with single blanks; `doc` says what is accepted
    each: Field | None = None  # what the values of a mapping, or the items of a list, are
    members: Members | None = None  # what a mapping (or each mapping of a list) may contain
    variants: dict[str, Members] = field(default_factory=dict)  # the same, by the mapping's `kind`
    implied_kinds: dict[str, str] = field(default_factory=dict)  # key -> the kind that it implies ("": none)


def count(doc: str = "", *, least: float = 1, most: float | None = None) -> Field:
    """A whole number, also as text."""
    return Field("any", doc, accepts=("integer",), least=least, most=most)


POSITIVE = Field("number", least=0.001)


class Members(Struct, frozen=True, omit_defaults=True):
    """The members of a mapping: its fields, and which of them are required.

    `requires` has groups of fields of which one must be given (`targets[].data`: every item of `targets` has `data`).
    `required_by` has the fields that a value of another field requires (`{"mode": {"upsert": ("key",)}}`; the value ""
    is that of a missing field, and `a|b` is one of two fields).
    """

    fields: dict[str, Field] = field(default_factory=dict)
    requires: tuple[tuple[str, ...], ...] = ()
    required_by: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    alternatives: tuple[tuple[str, ...], ...] = ()  # fields of which the first that is given is used
    open: bool = False  # accepts undeclared members; the declared ones are checked
    elsewhere: dict[str, str] = field(default_factory=dict)  # names that mean something at another place, and which


class ToolSpec(Struct, frozen=True, omit_defaults=True, dict=True):
    """A tool kind: parameters, spec defaults, helpers, and whether it has side effects.

    `helpers` are the kind's own parts of the output envelope with their null values
    (`{"http": {"status": None}}`): they exist on every outcome of the kind, also on errors.
    `pure` kinds have no side effects (noop), so a start need not be durable before they run.
    `open_fields` accepts undeclared parameters (the inputs of python).
    `suspends` kinds are executed by the server while no worker slot is taken (playbook).
    """

    kind: str
    doc: str = ""
    fields: dict[str, Field] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    spec_keys: dict[str, str] = field(default_factory=dict)  # spec key -> one line of documentation
    spec_fields: dict[str, Field] = field(default_factory=dict)  # spec key -> the literals that it accepts
    helpers: dict[str, dict[str, Any]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()  # other names of this kind
    pure: bool = False
    open_fields: bool = False
    suspends: bool = False
    extra: str | None = None  # the pip extra of a plug-in that installs its driver; informative
    example: str = ""
    requires: tuple[tuple[str, ...], ...] = ()  # as in `Members`
    required_by: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    alternatives: tuple[tuple[str, ...], ...] = ()  # fields of which the first that is given is used
    elsewhere: dict[str, str] = field(default_factory=dict)  # as in `Members`
    exclusive: tuple[tuple[str, ...], ...] = ()  # fields of which only one may be given

    @cached_property
    def spellings(self) -> dict[str, str]:
        """Aliases of the fields -> the field."""
        aliases = {alias: name for name, declared in self.fields.items() for alias in declared.aliases}
        return {alias: name for alias, name in aliases.items() if alias not in self.fields}


def number_of(value: Any) -> float | None:
    """A number, also one that is written as text; None for every other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def out_of_range(value: Any, field: Field) -> str | None:
    """What a number must be if it is outside the range of its field; None for other values and fields."""
    number = number_of(value) if field.least is not None or field.most is not None else None
    if number is None:
        return None
    if field.least is not None and not number >= field.least:  # also for nan
        return f"at least {field.least:g}"
    if field.most is not None and number > field.most:
        return f"at most {field.most:g}"
    return None


def rendered_problem(name: str, value: Any, field: Field) -> str | None:
    """What is wrong with the number, or the numbers, that templates have given; None if nothing is."""
    if value is None:
        return None
    if isinstance(value, Mapping) and field.members is not None:
        inside = [(f"{name}.{key}", each, field.members.fields.get(key)) for key, each in value.items()]
        return next((found for n, v, f in inside if f is not None and (found := rendered_problem(n, v, f))), None)
    if isinstance(value, list | tuple) and field.each is not None:
        return next((found for each in value if (found := rendered_problem(name, each, field.each))), None)
    types = set(field.accepts or (field.type,))
    if types <= {"integer", "number"} and number_of(value) is None:
        return f"`{name}` must be a number, not {written(value)}"
    wanted = out_of_range(value, field)
    return f"`{name}` must be {wanted}, not {written(value)}" if wanted is not None else None


def named_input(spec: ToolSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters under the names of their fields; a name takes precedence over its aliases."""
    spelled = dict(given)
    if spec.spellings.keys().isdisjoint(spelled):
        return spelled
    for alias, name in spec.spellings.items():
        if alias in spelled:
            value = spelled.pop(alias)
            spelled.setdefault(name, value)
    return spelled


def with_helpers(spec: ToolSpec, outcome: Outcome) -> Outcome:
    """The outcome with every helper of its kind, null where the tool set none."""
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
    """The services of the worker to a running tool."""

    def log(self, line: str, *, stream: str = "stdout") -> None:
        """Write a line of the tool's own output (masked) to the task log."""

    def log_full(self) -> bool:
        """Whether lines are printed faster than they are sent; then wait for `log_room` before the next ones."""

    async def log_room(self) -> None:
        """Wait while lines are printed faster than they are sent, for a limited time."""

    def mask(self, text: str) -> str:
        """The text with secret values masked; mask text before truncating it, so that no part of a secret remains."""

    def progress(self, **counts: float) -> None:
        """Report the progress: rows, bytes, pages."""

    async def credential(self, name: str) -> Mapping[str, Any]:
        """The fields of a keychain entry or stored credential, fetched on demand."""

    async def put_result(
        self, chunks: AsyncIterator[bytes], *, content_type: str, rows: int | None = None
    ) -> Reference:
        """Stream a payload into the result store of this run."""

    def open_result(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a stored payload; the checksum is verified once all of it is read."""

    async def fetch_source(self, uri: str, *, source: Mapping[str, Any] | None = None) -> bytes:
        """The bytes of `script: {uri}`: a file beside the playbook, http, or an object store."""

    def resolve_path(self, path: str) -> str:
        """A path in the playbook, resolved against the playbook's folder."""

    def allows_address(self, address: str) -> bool:
        """Whether the network policy allows tools to reach this IP address."""

    def address_check(self, *places: Any) -> Callable[[str], bool] | None:
        """The check for the addresses of a connection to these hosts, URLs or DSNs; None if none is needed: there is
        no network policy, or all places come from stored credentials, which administrators set."""


class ToolCall(Struct, frozen=True, gc=False):
    """One call of a task's tool: its rendered input and its context.

    `task_run_id` identifies this attempt, `idempotency_key` is stable over the attempts of a visit.
    `scopes` are the names visible to templates (workload, ctx, iter, ...), without secrets.
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
    where: str = ""  # file:line:column of the task in the playbook
    code_line: int | None = None  # YAML line of the first line of `code`, for tracebacks
    labels: tuple[str, ...] = ()  # `key=value`, of the step's `spec.placement`
    cost: int = 1  # of the step's `spec.cost`
    playbook: str = ""  # digest of the playbook; code of different playbooks shares no process
    path: str = ""  # of the playbook
    part: str = ""  # identifies one of several side effects of this call, if the tool has several
    state: Mapping[str, Any] = field(default_factory=dict)  # `state.<step>.<task>`, which `Outcome.state` writes
    state_writers: tuple[
        str, ...
    ] = ()  # executions with writes to it that are not committed: this one, and a rerun one

    @property
    def idempotency_key(self) -> str:
        """A stable key for the effect: the same for all attempts of a visit."""
        return idempotency_key(self.task_run_id) + self.part


ToolFunction = Callable[[ToolCall], Awaitable[Outcome]]


class RemoteTask(Struct, frozen=True, omit_defaults=True):
    """One call of a tool, as it is sent to a cluster.

    `labels` are those of `spec.placement`, `cost` is `spec.cost`. `secrets` are the secret texts of the input, which
    are masked in everything that the tool prints or returns as an error before it is cut."""

    kind: str
    input: dict[str, Any]
    spec: dict[str, Any]
    execution_id: str
    step: str
    task: str
    task_run_id: str
    attempt: int = 1
    timeout: Timeout = Timeout()
    scopes: dict[str, Any] = {}
    where: str = ""
    code_line: int | None = None
    playbook: str = ""
    labels: dict[str, str] = {}
    cost: int = 1
    secrets: list[str] = []


class Runtime(Protocol):
    """A connection to a cluster."""

    def run(self, task: RemoteTask) -> AsyncIterator[bytes]:
        """Execute `run_remote(encoded task)` on the cluster, and yield what it yields.

        Cancelling stops the task there. WorkerLost if its node was lost; the task is not executed again by itself."""

    async def close(self) -> None:
        """Disconnect."""
