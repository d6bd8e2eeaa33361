"""Settings, read once from flags, environment and files into one frozen object.

A value is taken from the first source that has it:

    flag            --store URL
    environment     NOETL_STORE=...
    .env            NOETL_STORE=... in the working folder
    noetl.toml      store = "..." in the working folder
    user config     store = "..." in the user's config folder (config.toml)
    default

`TABLE` is the complete list: an entry there is a setting in every source, in
`noetl config show` and in the reference page. A dotted name is a table in the files and is written with an
underscore elsewhere: `server.url` is `[server] url`, NOETL_SERVER_URL and `settings.server_url`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl.errors import RequestRefused

PREFIX = "NOETL_"
PROJECT_FILE = "noetl.toml"
PROJECT_TABLES = ("project", "profile")  # of the project file: they describe the project, not the installation
ENV_FILE = ".env"
# Variables with our prefix that are no settings: keys, of parent processes, of the completion of shells, of tests.
OTHER_VARIABLES = frozenset(
    {f"{PREFIX}{name}" for name in ("SECRET_KEY", "DETACHED", "TAKEN", "HELD", "LOG_FILE", "SCREENSHOTS")}
    | {f"{PREFIX}{name}" for name in ("EXAMPLES", "GOLDEN", "CHROMIUM", "SKIP_BROWSER", "COMPLETE", "SECRETS_PATH")}
)
SEE_SETTINGS = "; see `noetl config show`"
USER_FILE = "config.toml"


class Settings(Struct, frozen=True):
    """The settings of an installation; one attribute per entry of `TABLE`."""

    home: Path
    store: str
    results: str
    slots: int
    server_url: str | None
    token: str | None
    server_host: str
    server_port: int
    server_hosts: tuple[str, ...]
    server_prefix: str
    server_tls_cert: Path | None
    server_tls_key: Path | None
    server_trusted_proxies: tuple[str, ...]
    server_lease_seconds: float
    server_tenant_label: str
    server_max_waiting_runs: int
    server_drain_seconds: float
    server_replica: str | None
    worker_pool: str
    worker_labels: tuple[str, ...]
    worker_runtime: str | None
    worker_drain_seconds: float
    worker_user: str | None
    secrets_folders: tuple[str, ...]
    private_networks: tuple[str, ...]
    log_format: str
    log_rotate_mb: int
    log_rotate_files: int
    traces: str
    lineage: str
    lineage_namespace: str
    retention: float | None
    deliveries_retention: float
    deliveries_max_pending: int
    deliveries_max_backlog: int
    notifications_attempts: int
    notifications_link_expiry: float
    nats_url: str | None
    nats_prefix: str
    sqlite_wal_preallocate: bool
    record_inputs: bool


class BadSetting(RequestRefused):
    """A setting with an invalid value; the message names the setting, its source and the valid values."""


class Setting(Struct, frozen=True):
    """One entry of the table."""

    name: str
    read: Callable[[Any], Any]  # parses text or a TOML value; raises ValueError with the rule
    default: Any  # a value, or a function of the earlier settings and the environment
    doc: str
    secret: bool = False

    @property
    def attribute(self) -> str:
        """Name of the attribute in `Settings`."""
        return self.name.replace(".", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return PREFIX + self.attribute.upper()

    def default_value(self, known: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
        """The value without any source."""
        return self.default(known, environ) if callable(self.default) else self.default


class Loaded(Struct, frozen=True):
    """The settings, the source of each (`attribute -> description`), and warnings about the files."""

    settings: Settings
    origins: dict[str, str]
    warnings: tuple[str, ...] = ()


# ── parsing one value ───────────────────────────────────────────────────────────────────


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be text")
    return value.strip()


def _path(value: Any) -> Path:
    return Path(_text(value)).expanduser().absolute()


def _url(value: Any) -> str:
    url = _text(value)
    if not url.startswith(("http://", "https://")) or url.endswith("://"):
        raise ValueError("must be a URL that begins with http:// or https://")
    return url.rstrip("/")


def _nats_url(value: Any) -> str:
    url = _text(value)
    if not all(each.strip().startswith(("nats://", "tls://")) for each in url.split(",")):
        raise ValueError("must be a URL that begins with nats:// or tls:// (separate several with commas)")
    return url


def _postgres_url(value: Any) -> str:
    url = _text(value)
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("must be a URL that begins with postgresql://")
    return url


def _pools(value: Any) -> str:
    pools = _text(value)
    try:
        shares(pools, 1)
    except ValueError:
        raise ValueError("must be a name, or names with weights of at least 1: default=3,reports=1") from None
    return pools


def _labels(value: Any) -> tuple[str, ...]:
    labels = _texts(value)
    for label in labels:
        name, equals, text = label.partition("=")
        if not (name.strip() and equals and text.strip()):
            raise ValueError(f"a label is written as name=value, not {label!r}")
    return tuple(sorted(labels))


def shares(pools: str, slots: int) -> dict[str, int]:
    """Divide the slots between pools by weight; each pool gets at least one."""
    weights: dict[str, int] = {}
    for each in pools.split(","):
        name, equals, weight = (part.strip() for part in each.partition("="))
        number = int(weight) if equals else 1
        if not name or name in weights or number < 1:
            raise ValueError(each)
        weights[name] = number
    total = sum(weights.values())
    given = {name: max(1, slots * weight // total) for name, weight in weights.items()}
    spare = slots - sum(given.values())
    for name in sorted(weights, key=lambda name: -weights[name])[: max(0, spare)]:
        given[name] += 1
    return given


def _positive(value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else 0
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("must be a whole number of at least 1")
    return number


def _port(value: Any) -> int:
    number = _positive(value)
    if number > 65535:
        raise ValueError("must be a port from 1 to 65535")
    return number


def _seconds(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise ValueError("must be a number of seconds greater than 0")
    return number


def _pause(value: Any) -> float:
    return 0.0 if value in (0, "0") and not isinstance(value, bool) else _seconds(value)


def _some_duration(value: Any) -> float:
    number = _duration(value)
    if number is None:
        raise ValueError("must be a duration such as 12h, 30d or 52w")
    return number


def _duration(value: Any) -> float | None:
    if value in ("off", "never", "none"):
        return None
    from noetl.core.model.durations import seconds

    try:
        number = None if isinstance(value, bool) else seconds(value)
    except ValueError:
        number = None
    if not number:
        raise ValueError("must be a duration such as 12h, 30d or 52w, or off")
    return number


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return str(value)

    return read


def _texts(value: Any) -> tuple[str, ...]:
    items = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item for item in items):
        raise ValueError("must be a list of texts (in the environment: separated by commas)")
    return tuple(items)


def _urls(value: Any) -> str:
    return _text(",".join(value) if isinstance(value, list | tuple) else value)


def _networks(value: Any) -> tuple[str, ...]:
    import ipaddress

    networks = _texts(value)
    for network in networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise ValueError(f"{network!r} is not a network; write it like 10.0.0.0/8") from None
    return networks


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in ("on", "off", "true", "false", "1", "0"):
        raise ValueError("must be on or off")
    return str(value).lower() in ("on", "true", "1")


def _prefix(value: Any) -> str:
    return "/" + _text(value).strip("/")


# ── platform folders ────────────────────────────────────────────────────────


def _folder(kind: str, environ: Mapping[str, str]) -> Path:
    """The user's data or config folder for this program.

    platformdirs supports every platform. On Linux its result is two lines of the XDG
    specification, and its import takes a tenth of the start-up time of `noetl run`."""
    if sys.platform == "linux":
        variable, usual = {"data": ("XDG_DATA_HOME", ".local/share"), "config": ("XDG_CONFIG_HOME", ".config")}[kind]
        base = environ.get(variable, "").strip()
        return (Path(base) if base else Path(environ.get("HOME") or Path.home()) / usual) / "noetl"
    import platformdirs

    return Path(
        platformdirs.user_data_dir("noetl", appauthor=False)
        if kind == "data"
        else platformdirs.user_config_dir("noetl", appauthor=False)
    )


# ── the table ───────────────────────────────────────────────────────────────────────────

TABLE: tuple[Setting, ...] = (
    Setting("home", _path, lambda known, environ: _folder("data", environ), "folder for the data of this installation"),
    Setting(
        "store",
        _text,
        lambda known, environ: f"sqlite://{known['home']}/noetl.db",
        "event store of the embedded engine or of a server",
    ),
    Setting(
        "results",
        _urls,
        lambda known, environ: f"blob://{known['home']}/results",
        "result stores for payloads too large for the event log, separated by commas; the first is the default",
    ),
    Setting("slots", _positive, 256, "number of runs that the embedded engine executes concurrently"),
    Setting("server.url", _url, None, "server that commands connect to; none: the embedded engine"),
    Setting("token", _text, None, "access token for that server", secret=True),
    Setting("server.host", _text, "127.0.0.1", "address that a server listens on"),
    Setting("server.port", _port, 8642, "port that a server listens on"),
    Setting("server.hosts", _texts, (), "host names that a server accepts in addition to loopback"),
    Setting("server.prefix", _prefix, "", "path prefix under which a reverse proxy publishes a server"),
    Setting("server.tls_cert", _path, None, "certificate (PEM, with its chain) with which a server uses TLS"),
    Setting("server.tls_key", _path, None, "private key of that certificate; none: it is in the same file"),
    Setting(
        "server.trusted_proxies",
        _networks,
        (),
        "addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` a server accepts",
    ),
    Setting("server.lease_seconds", _seconds, 30.0, "time without a heartbeat after which a worker loses its runs"),
    Setting("server.tenant_label", _text, "tenant", "label of executions whose values share the workers' slots fairly"),
    Setting(
        "server.max_waiting_runs",
        _positive,
        500_000,
        "number of runs that wait for workers at which a server refuses requests (429)",
    ),
    Setting(
        "server.drain_seconds",
        _pause,
        0.0,
        "time that a stopping server still serves requests while `/readyz` reports that it is not ready",
    ),
    Setting(
        "server.replica",
        _postgres_url,
        None,
        "streaming replica of the store (Postgres) from which a server reads lists, searches and logs of requests; "
        "none: from the store",
        secret=True,
    ),
    Setting(
        "worker.pool",
        _pools,
        "default",
        "pool that a worker leases runs from; several pools share its slots by weight: `default=3,reports=1`",
    ),
    Setting("worker.labels", _labels, (), "labels of a worker, which steps may require (`spec.placement`): `gpu=true`"),
    Setting(
        "worker.runtime",
        _text,
        None,
        "cluster that executes the python and shell tasks of a worker (plug-ins): `ray://HOST:6379`, `dask://HOST:8786`",
    ),
    Setting("worker.drain_seconds", _seconds, 30.0, "time that a stopping worker gives its runs to finish"),
    Setting("worker.user", _text, None, "user that a worker runs as, if root starts it; it cannot read `NOETL_HOME`"),
    Setting(
        "secrets.folders",
        _texts,
        ("/run/secrets", "/var/run/secrets", "/etc/noetl/secrets"),
        "folders in which keychain entries of `kind: file` may read files on a server",
    ),
    Setting("private_networks", _networks, (), "private networks that the tools of a worker may connect to"),
    Setting("log.format", _one_of("text", "json"), "text", "log format of servers and workers: `text` or `json`"),
    Setting("log.rotate_mb", _positive, 50, "size in MB at which the log file of a background process is rotated"),
    Setting("log.rotate_files", _positive, 5, "number of rotated log files that are kept per process"),
    Setting(
        "traces",
        _one_of("off", "otlp", "console"),
        "off",
        "OpenTelemetry traces of servers and workers: `off`, `otlp` (to `OTEL_EXPORTER_OTLP_ENDPOINT`) or `console`",
    ),
    Setting(
        "lineage",
        _text,
        "off",
        "where servers send OpenLineage events: `off`, `file:///path`, `http(s)://host` (path `/api/v1/lineage`) or "
        "`nats://host:4222/subject`",
    ),
    Setting("lineage.namespace", _text, "noetl", "namespace of jobs in OpenLineage events"),
    Setting(
        "retention",
        _duration,
        None,
        "time after which a server deletes finished executions, such as `30d`; none: never",
    ),
    Setting(
        "deliveries.retention",
        _some_duration,
        30 * 86_400.0,
        "time for which ended deliveries of triggers and sent notifications are kept and repetitions are recognised",
    ),
    Setting(
        "deliveries.max_pending",
        _positive,
        10_000,
        "pending deliveries of a trigger above which its source is not read and a webhook responds 503",
    ),
    Setting(
        "deliveries.max_backlog",
        _positive,
        1_000,
        "runs that wait for workers above which no delivery is started",
    ),
    Setting("notifications.attempts", _positive, 11, "attempts to send a notification before it counts as failed"),
    Setting(
        "notifications.link_expiry",
        _some_duration,
        7 * 86_400.0,
        "time for which a link in a notification answers a wait",
    ),
    Setting(
        "nats.url",
        _nats_url,
        None,
        "NATS server for messages between servers and workers; none: HTTP only",
        secret=True,
    ),
    Setting("nats.prefix", _text, "noetl", "prefix of the NATS subjects of this installation"),
    Setting(
        "sqlite.wal_preallocate",
        _boolean,
        False,
        "preallocate SQLite's write-ahead log: `on` or `off`; shortens the first commits of a new log by about 15%",
    ),
    Setting(
        "record_inputs",
        _boolean,
        True,
        "record the rendered input of every task attempt in the event log: `on` or `off` (embedded engine and workers)",
    ),
)


_PASSWORD = re.compile(r"(?<=://)([^/@\s:,]*):[^/@\s,]*(?=@)|(?<=://)[^/@\s:,]+(?=@)")


def without_password(address: str) -> str:
    """The address with its password (or its bare token) replaced by `***`."""
    return _PASSWORD.sub(lambda found: f"{found[1]}:***" if found[1] is not None else "***", address)


# ── reading the sources ──────────────────────────────────────────────────────────────────


_FLAGS = {
    "server_url": "server",
    "server_host": "host",
    "server_port": "port",
    "worker_pool": "pool",
    "retention": "older-than",
}


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Loaded:
    """Read every source once. `flags` maps attributes to values; None means that the flag is not given."""
    environ = os.environ if environ is None else environ
    folder = Path.cwd() if folder is None else folder
    warnings: list[str] = []
    dotenv = read_env_file(folder / ENV_FILE)
    sources: list[tuple[Callable[[Setting], str], Mapping[str, Any]]] = [
        (lambda s: f"flag --{_FLAGS.get(s.attribute, s.attribute.replace('_', '-'))}", flags or {}),
        (lambda s: f"environment {s.variable}", _from_variables(environ)),
        (lambda s: f"{ENV_FILE} ({s.variable})", _from_variables(dotenv)),
    ]
    files = (folder / PROJECT_FILE, _folder("config", environ) / USER_FILE)
    sources += [(_named(file, folder), _from_toml(file, warnings)) for file in files]
    warnings += _unknown_variables(environ, "environment") + _unknown_variables(dotenv, ENV_FILE)
    known: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in TABLE:
        attribute = setting.attribute
        for origin, values in sources:
            if values.get(attribute) is None:
                continue
            try:
                known[attribute] = setting.read(values[attribute])
            except ValueError as problem:
                shown = "" if setting.secret else f" {values[attribute]!r}"
                raise BadSetting(
                    f"invalid value{shown} for setting {setting.name}: {problem} (from {origin(setting)})"
                ) from None
            origins[attribute] = origin(setting)
            break
        else:
            known[attribute] = setting.default_value(known, environ)
            origins[attribute] = "default"
    return Loaded(settings=Settings(**known), origins=origins, warnings=tuple(warnings))


def _named(file: Path, folder: Path) -> Callable[[Setting], str]:
    name = file.name if file.parent == folder else str(file)
    return lambda setting: f"{name} ({setting.name})"


def _from_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Settings among environment variables; an empty variable counts as not set."""
    named = {setting.variable: setting.attribute for setting in TABLE}
    return {named[key]: value for key, value in variables.items() if key in named and value.strip()}


def _unknown_variables(variables: Mapping[str, str], source: str) -> list[str]:
    """Warnings about `NOETL_*` names that are no settings."""
    known = [setting.variable for setting in TABLE]
    return [
        f"{source}: unknown setting {name}{similar(name, known, SEE_SETTINGS)}"
        for name in variables
        if name.startswith(PREFIX) and name not in known and name not in OTHER_VARIABLES
    ]


def read_env_file(file: Path) -> dict[str, str]:
    """The `NOETL_*=value` lines of a .env file, with optional `export`, quotes and comments.

    Lines of other programs are ignored."""
    found: dict[str, str] = {}
    for number, line in enumerate((_read(file) or "").splitlines(), start=1):
        line = line.strip().removeprefix("export ").strip()
        if not line.startswith(PREFIX):
            continue
        key, equals, value = line.partition("=")
        value = value.strip()
        if not equals:
            raise BadSetting(f"{file.name}:{number}: expected {key}=value")
        if value[:1] in ("'", '"'):
            end = value.find(value[0], 1)
            if end < 0:
                raise BadSetting(f"{file.name}:{number}: unterminated quote")
            value = value[1:end]
        else:
            value = value.partition(" #")[0].rstrip()
        found[key.strip()] = value
    return found


def _from_toml(file: Path, warnings: list[str]) -> dict[str, Any]:
    """Settings of a TOML file; an unknown key becomes a warning."""
    text = _read(file)
    if text is None:
        return {}
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise BadSetting(f"{file} is not valid TOML: {problem}") from None
    known = {setting.name: setting.attribute for setting in TABLE}
    found: dict[str, Any] = {}
    shown = file.name if file.parent == Path.cwd() else file
    for name, value in _leaves({key: value for key, value in document.items() if key not in PROJECT_TABLES}):
        if name in known:
            found[known[name]] = value
        else:
            warnings.append(f"{shown}: unknown setting {name}{similar(name, list(known), SEE_SETTINGS)}")
    return found


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def similar(name: str, known: list[str], otherwise: str = "") -> str:
    """The end of a message about an unknown name: a similar one, if there is one."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else otherwise


def _read(file: Path) -> str | None:
    """The text of an optional file, or None; a file that exists and cannot be read is an error."""
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except UnicodeDecodeError:
        raise BadSetting(f"{file} is not UTF-8 text") from None
    except OSError as problem:
        raise BadSetting(f"cannot read {file}: {problem.strerror}") from None
