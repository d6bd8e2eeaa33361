"""`make fuzz`: a fuzz target for every parser of data from outside.

A target may raise the errors of its parser and nothing else. Inputs are mutations of the corpus below and random texts.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from noetl.connections import duckdb_gate
from noetl.connections.objects import parse_location
from noetl.core.language.compile import compile_playbook
from noetl.core.model import wire
from noetl.core.templates.binding import Bound
from noetl.core.templates.template import compile_value
from noetl.data import sql
from noetl.errors import NoetlError
from noetl.server.http.middleware import security
from noetl.server.http.routes.execute import ExecuteBody
from noetl.server.scheduling.cron import Cron
from noetl.server.scheduling.webhooks import payload_of
from noetl.storage.backup.archive import BackupReader, BackupWriter, Manifest
from noetl.tools.registry import specs
from noetl.tools.shell import value_binding as shell
from noetl.transport.signing import key_of, proves, read_question, signed_question

CORPUS: dict[str, list[bytes]] = {
    "playbook": [
        b"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a}\nworkload: {x: 1}\nworkflow:\n"
        b"  - step: start\n    tool: {kind: noop}\n    next: {arcs: [{step: b, when: '{{ workload.x > 1 }}'}]}\n"
        b"  - {step: b, loop: {in: '{{ [1] }}', iterator: i}, tool: [{name: t, kind: python, code: 'result = 1'}]}\n",
        b"a: &a [*a]\n", b"<<: {a: 1}\n? [x]\n: y\n", b"\xff\xfe\x00", b"a: !!python/object:os.system x\n",
    ],
    "template": [
        b"{{ a.b[0] | default('x') | upper }}", b"{% for i in a %}{{ loop.index }}{% endfor %}", b"{{ a if b else c }}",
        b"{# c #}{{ '%s' % a }}", b"{{ a == [1, {'b': 2}] and not c in d }}", b"{%- set x = 1 -%}{{ x ~ a }}",
    ],
    "http body": [b'{"path": "a", "payload": {"a": [1, 2.5, null]}, "version": 1}', b'{"content": "x", "strict": true}', b"[[[["],
    "worker protocol": [
        b'{"worker":"w","reports":[["1:a:1",1,1,[["step.done",1,{}]]]],"free":1,"proofs":["x"]}',
        b'{"claim":{"worker":"w","slots":1},"wait":0}', b'{"worker":"w","runs":[["1:a:1",1]],"proofs":[""]}',
    ],
    "shell command": [
        b"echo {{ v }} | awk '{print $1}' > \"$HOME/{{ v }}\"", b"cat <<EOF\n{{ v }}\nEOF\n[[ {{ v }} -eq 1 ]] && (( x = {{ v }} ))",
        b"bash -c 'echo {{ v }}' _ {{ v }}; for i in {{ v }}; do eval \"$i\"; done", b"$'\\x41{{ v }}' ${a[{{ v }}]} `{{ v }}`",
    ],
    "sql": [
        b"select 'a''{{' || \"b\" from t where x = :v and y = $1 -- c\n/* d /* e */ */; insert into t values (?, %s)",
        b"CREATE FUNCTION f() AS $tag$ begin; end $tag$ LANGUAGE sql; ATTACH 'postgres:host=a' AS b (TYPE postgres)",
        b"COPY t TO 's3://b/k'; CREATE SECRET s (TYPE s3, ENDPOINT '127.0.0.1'); SET x = E'\\'' ; select U&'\\0041'",
    ],
    "object address": [b"s3://bucket/a%20b", b"file:///a/../b", b"az://c@account.blob.core.windows.net/k", b"a//b", b"s3://[::1"],
    "webhook body": [b"a=1&b=2&a=3", b"payload=%7B%22a%22%3A1%7D", b'{"a": [1, "\\ud83d"]}', b"\xff=%ff", b"a&" * 2000],
    "backup": [],
    "cron": [b"30 6 * * mon-fri", b"*/5 0-23/2 1,15 jan L", b"@daily", b"0 0 30 2 *", b"* * * * * *"],
    "request head": [b"127.0.0.1:8080", b"[::1]:80", b"https://a.example:443", b"null", b"a@b:1"],
    "signature": [signed_question(key_of("t"), "claim", b"{}"), b"0" * 120, b""],
}  # fmt: skip


def _playbook(data: bytes) -> None:
    compile_playbook(data.decode("utf-8", "replace"), file="f.yaml", specs=specs())


def _template(data: bytes) -> None:
    compiled = compile_value(data.decode("utf-8", "replace"))
    compiled.evaluate({"a": {"b": ["x", 1]}, "b": True, "c": 2, "d": [2]})


def _http_body(data: bytes) -> None:
    msgspec.json.decode(data, type=ExecuteBody)


def _worker_protocol(data: bytes) -> None:
    for request in (wire.ClaimRequest, wire.ExtendRequest, wire.ReportRequest, wire.SecretsRequest, wire.RunsRequest):
        try:
            decoded = msgspec.json.decode(data, type=request)
        except DECODING:
            continue
        if isinstance(decoded, wire.ReportRequest):
            decoded.decoded()


def _signature(data: bytes) -> None:
    question = read_question(data)
    assert question is None or not proves(question, key_of("another"), "claim")


def _shell_command(data: bytes) -> None:
    pieces = data.decode("utf-8", "replace").split("{{ v }}")
    for value in ("x; id", 7, "$(id)\n'\"", ["a", "b"]):
        parts: list[str | Bound] = [pieces[0]]
        for piece in pieces[1:]:
            parts += [Bound(value), piece]
        try:
            shell.bind(parts)
        except shell.CannotBind:
            continue


def _sql(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for dialect in ("postgres", "duckdb", "sqlite"):
        try:
            sql.bind(text, {"v": 1}, dialect)  # type: ignore[arg-type]
        except sql.ParameterError:
            continue
    found = [token for token in sql.tokens(text, "duckdb") if token.kind != "comment" and token.text.strip()]
    words = [token.text.lower() for token in found if token.kind == "word"]
    list(duckdb_gate._places(words, found, {"v": "x"}))  # without resolving their names
    duckdb_gate._refuse_changes(words, found)


def _webhook_body(data: bytes) -> None:
    msgspec.json.encode(payload_of(data, "application/x-www-form-urlencoded"))


def _backup(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        reader = BackupReader(Path(file.name))
        reader.verify()
        reader.close()


def _sample_backup() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "backup")
        with BackupWriter(target) as writer:
            with writer.entry("noetl.db") as write:
                write(b"text of a database " * 20)
            writer.finish(Manifest("sqlite", "1", "2026", {"events": 1}))
        return target.read_bytes()


def _request_head(data: bytes) -> None:
    text = data.decode("latin-1")
    assert security._host_name(text) == security._host_name(text).lower()
    security._origin(text)
    security._token({b"cookie": text, b"authorization": text}, is_secure=False)
    security._length({b"content-length": text})


CORPUS["backup"].append(_sample_backup())
# The errors of a JSON decoder; `tests/security/test_web.py` sends them to a server.
DECODING = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
TARGETS: dict[str, tuple[Callable[[bytes], None], tuple[type[Exception], ...]]] = {
    "playbook": (_playbook, (NoetlError,)),
    "template": (_template, (NoetlError,)),
    "http body": (_http_body, DECODING),
    "worker protocol": (_worker_protocol, (*DECODING, NoetlError, KeyError)),
    "shell command": (_shell_command, ()),
    "sql": (_sql, (NoetlError,)),
    "object address": (lambda data: parse_location(data.decode("utf-8", "replace")), (ValueError,)),
    "webhook body": (_webhook_body, (NoetlError,)),
    "backup": (_backup, (NoetlError,)),
    "cron": (lambda data: Cron(data.decode("utf-8", "replace")).next(0.0), (NoetlError,)),
    "request head": (_request_head, ()),
    "signature": (_signature, ()),
}
_PIECES = (
    b"{{",
    b"}}",
    b"{%",
    b"[",
    b"]",
    b"{",
    b"}",
    b"\x00",
    b"\xff",
    b"'",
    b'"',
    b"\n",
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"9" * 30,
)


def mutated(chosen: random.Random, corpus: list[bytes]) -> bytes:
    """A sample of the corpus with some bytes removed, repeated, replaced or inserted."""
    data = bytearray(chosen.choice(corpus))
    for _ in range(chosen.randint(1, 6)):
        at = chosen.randint(0, len(data))
        end = min(len(data), at + chosen.randint(0, 12))
        action = chosen.randrange(4)
        if action == 0:
            del data[at:end]
        elif action == 1:
            data[at:at] = data[at:end] * chosen.randint(1, 20)
        elif action == 2:
            data[at:end] = bytes(chosen.randrange(256) for _ in range(end - at))
        else:
            data[at:at] = chosen.choice(_PIECES)
    return bytes(data)


def fuzz(name: str, examples: int, seed: int = 0) -> None:
    """Run a target; any other error than its parser's is raised with the input."""
    target, expected = TARGETS[name]
    chosen = random.Random(f"{name}{seed}")
    for number in range(examples):
        data = CORPUS[name][number] if number < len(CORPUS[name]) else mutated(chosen, CORPUS[name])
        try:
            target(data)
        except expected:
            continue
        except Exception as problem:
            raise AssertionError(f"{name}: {data!r} raised {type(problem).__name__}: {problem}") from problem


if __name__ == "__main__":
    for each in TARGETS:
        fuzz(each, int(sys.argv[1]) if len(sys.argv) > 1 else 20_000, seed=random.randrange(1 << 30))
        print(f"{each}: no finding")
