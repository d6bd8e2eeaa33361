"""Fields and spec keys shared by the SQL kinds; cheap to import, since every spec is loaded at start-up."""

from __future__ import annotations

from noetl.core.model.tool import Field, Members, count
from noetl.data.files.formats import OTHER_NAMES
from noetl.tools._common.script_fields import SCRIPT_MEMBERS

INLINE_ROWS = 50_000
INLINE_BYTES = 16 * 1024 * 1024

PARAMS = Field(
    "any",
    "Bind parameters: a mapping for `%(name)s` or `:name`, a list for `%s` or `$1`. "
    "A list of mappings (or of lists) executes one statement once per item.",
    accepts=("mapping", "list"),
    aliases=("parameters",),
)
COMMAND = Field(
    "any",
    "The SQL: one string (statements are separated by `;`), or a list of strings and of `{sql, params}`.",
    accepts=("string", "list"),
    aliases=("commands", "query", "queries", "sql", "statement", "statements"),
    each=Field(
        "any",
        "A statement, or `{sql, params}`.",
        accepts=("string", "mapping"),
        members=Members(
            {
                "sql": Field("string", "The statement.", required=True, aliases=("command", "query", "statement")),
                "params": PARAMS,
            }
        ),
    ),
)
SCRIPT = Field(
    "mapping",
    "SQL from a file: `{uri, source?}` (relative to the playbook, http, object store).",
    members=SCRIPT_MEMBERS,
    files="members",
)
REQUIRES = ALTERNATIVES = (("command", "script"),)
DATABASE_FILE = Field(
    "string",
    "The database file, relative to the playbook's directory. Omitted or `:memory:`: a private in-memory database.",
    aliases=("database", "db_path", "db_file"),
    files=True,
)
FILE_FIELDS = {"command": COMMAND, "script": SCRIPT, "params": PARAMS, "file": DATABASE_FILE}  # of databases in files
POSTGRES_CONNECTION = {
    "dsn": Field("string", "The connection as a DSN or URL.", aliases=("url", "connection_string")),
    "host": Field("string", "Host name, if `auth` does not contain it.", aliases=("db_host",)),
    "port": Field("any", "Port (5432).", accepts=("integer",), aliases=("db_port",), least=1, most=65535),
    "user": Field("string", "Role to connect as.", aliases=("db_user", "username")),
    "password": Field("string", "Password of the role.", aliases=("db_password",)),
    "database": Field("string", "Database to connect to.", aliases=("db_name", "dbname")),
    "sslmode": Field(
        "string",
        "As in libpq: `disable`, `require`, `verify-full`, ...",
        aliases=("db_sslmode",),
        choices=("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    ),
}
SPEC_FIELDS = {
    "transaction": Field("boolean", "`false`: every statement commits separately."),
    "inline_rows": count(),
    "inline_bytes": count(),
    "result_format": Field("string", choices=("parquet", "arrow", "jsonl", "csv"), also=OTHER_NAMES),
}
SPEC_KEYS = {
    "transaction": "`false`: every statement commits separately. Default: one transaction per task.",
    "inline_rows": f"Largest result returned in `output.data`, in rows ({INLINE_ROWS}); "
    "a larger one is streamed to `output.ref`.",
    "inline_bytes": f"The same limit in bytes, estimated ({INLINE_BYTES}).",
    "result_format": "Format of a streamed result: `parquet` (default), `arrow`, `jsonl` or `csv`.",
}
