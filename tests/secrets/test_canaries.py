"""Two hundred secrets pass through tools and all stores: none is found in anything that was written."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
from contextlib import redirect_stderr, redirect_stdout
from urllib.parse import quote

import pytest
from aiohttp import web

from noetl.cli import app as program
from noetl.core.model.events import TaskDone
from noetl.embedded import open_local

COUNT = 200


def canaries():
    """Secrets of many shapes: letters, punctuation that gets escaped, non-ASCII, several lines."""
    shapes = (
        "canary{n:03d}tok{x:06x}",
        'can"ary\\{n:03d}/{x:06x}+=',
        "kanärie-{n:03d}-{x:06x}",
        "c&a<n>{n:03d} {x:06x}'y",
    )
    return {f"CANARY_{n}": shapes[n % 4].format(n=n, x=n * 7919 + 4242) for n in range(COUNT)}


def encodings(secret):
    raw = secret.encode()
    yield raw
    yield json.dumps(secret)[1:-1].encode()
    yield quote(secret, safe="").encode()
    yield raw.hex().encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw)
        yield encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]


CODE = """
import base64, json, sys
from urllib.parse import quote
for secret in secrets:
    print("print", secret)
    print(base64.b64encode(secret.encode()).decode(), quote(secret), json.dumps(secret), file=sys.stderr)
"""


def playbook(url):
    names = [f"c{n}" for n in range(COUNT)]
    every = ", ".join(f'"{{{{ keychain.{name} }}}}"' for name in names)
    keychain = "\n".join(f"  - {{name: {name}, kind: env, var: CANARY_{n}}}" for n, name in enumerate(names))
    continues = "spec: {timeout: 60, policy: {rules: [{else: {then: {do: continue}}}]}}"
    return f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: canaries}}
keychain:
{keychain}
workflow:
  - step: start
    tool:
      - name: returned
        kind: python
        input: {{secrets: [{every}]}}
        code: |
          {CODE.strip().replace(chr(10), chr(10) + " " * 10)}
          import base64
          result = {{"plain": secrets, "encoded": [base64.b64encode(b"xy" + s.encode()).decode() for s in secrets]}}
        set:
          ctx.kept: "{{{{ output.data.plain }}}}"
          step.kept: "{{{{ output.data.encoded[3] }}}}"
        {continues}
      - name: large
        kind: python
        input: {{secrets: [{every}]}}
        code: |
          result = {{"padding": "x" * 200000, "secrets": {{s: s[::-1] + s for s in secrets}}}}
        {continues}
      - name: raised
        kind: python
        input: {{secrets: [{every}]}}
        code: |
          raise ValueError("could not use " + " and ".join(secrets))
        {continues}
      - name: shell
        kind: shell
        cmd: "echo {{{{ keychain.c0 }}}}; echo '{{{{ keychain.c1 }}}}' >&2; printf %s {{{{ keychain.c2 }}}} | base64; exit 3"
        {continues}
      - name: echoed
        kind: http
        url: {url}/echo
        json: [{every}]
        headers: {{X-Secret: "{{{{ keychain.c4 }}}}"}}
        {continues}
      - name: streamed
        kind: http
        url: {url}/echo
        json: [{every}]
        spec: {{timeout: 60, stream: true}}
      - name: unreachable
        kind: http
        url: "http://127.0.0.1:1/?token={{{{ keychain.c8 | urlencode }}}}"
        {continues}
      - name: read
        kind: secrets
        names: [c0, c1, c2, c3]
        {continues}
      - name: failed
        kind: python
        input: {{secret: "{{{{ keychain.c5 }}}}"}}
        code: |
          raise RuntimeError(secret)
"""


@pytest.fixture
def server():
    async def echo(request):
        body = await request.read()
        return web.Response(
            body=body,
            headers={"Content-Type": "application/json", "X-Echo": quote(request.headers.get("X-Secret", ""))},
        )

    async def start():
        app = web.Application()
        app.router.add_post("/echo", echo)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    return start


def test_no_secret_is_found_in_anything_that_was_written(tmp_path, monkeypatch, caplog, server):
    secrets = canaries()
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home"
    monkeypatch.setenv("NOETL_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    events = []

    async def run():
        runner = await server()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with await open_local(home=home) as engine:
                return await engine.run(playbook(url), on_event=events.append)
        finally:
            await runner.cleanup()

    result = asyncio.run(run())
    assert result.status == "failed"
    done = {event.body.task: event.body.outcome for event in events if isinstance(event.body, TaskDone)}
    assert {task: outcome.error and outcome.error.kind for task, outcome in done.items()} == {
        "returned": None,
        "large": None,
        "raised": "python",
        "shell": "shell",
        "echoed": None,
        "streamed": None,
        "unreachable": "connection",
        "read": None,
        "failed": "python",
    }
    assert done["large"].ref is not None and done["streamed"].ref is not None
    look_everywhere(home, secrets, result=repr(result), events=repr(events), log=caplog.text)


def look_everywhere(home, secrets, **texts):
    """No form of a secret is in a file, in what commands show, or in these texts."""
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        for command in (
            ["events", "last"],
            ["events", "last", "--json"],
            ["status", "last", "--json"],
            ["why", "last"],
        ):
            program.run(command)
    written = {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    written |= {name: text.encode() for name, text in texts.items()}
    written["cli"] = shown.getvalue().encode()
    assert sum(map(len, written.values())) > 300_000 and len(shown.getvalue()) > 1000
    assert b"***" in written["events"] and b"***" in written["log"]
    found = {
        (place, secret)
        for place, content in written.items()
        for secret in secrets.values()
        if any(form in content for form in encodings(secret))
    }
    assert not found


STORES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: canaries_of_stores}
keychain:
KEYCHAIN
workbook:
  block:
    tool:
      - {name: inner, kind: python, input: {secrets: "{{ input.secrets }}"}, code: "print(secrets); result = secrets"}
workflow:
  - step: start
    tool:
      - name: pg_rows
        kind: postgres
        auth: PG
        command: |
          CREATE TABLE canaries (secret text UNIQUE);
          INSERT INTO canaries SELECT jsonb_array_elements_text(%(all)s::jsonb);
          SELECT secret, encode(convert_to(secret, 'UTF8'), 'base64') AS coded FROM canaries
        params: {all: [EVERY]}
        CONTINUES
      - name: pg_many
        kind: postgres
        auth: PG
        query: "SELECT n, %(one)s || n AS secret FROM generate_series(1, 3000) g(n)"
        params: {one: "{{ keychain.c6 }}"}
        spec: {inline_rows: 10, policy: {rules: [{else: {then: {do: continue}}}]}}
      - name: pg_notice
        kind: postgres
        auth: PG
        command: |
          DO $$ DECLARE s text; BEGIN FOR s IN SELECT secret FROM canaries LOOP RAISE NOTICE 'saw %', s; END LOOP; END $$
        CONTINUES
      - name: pg_constraint
        kind: postgres
        auth: PG
        command: "INSERT INTO canaries VALUES (%(one)s)"
        params: {one: "{{ keychain.c1 }}"}
        CONTINUES
      - name: pg_syntax
        kind: postgres
        auth: PG
        command: "SELECT '{{ keychain.c0 }}' FROM nowhere_{{ keychain.c0 }}"
        CONTINUES
      - name: pg_copy
        kind: postgres
        auth: PG
        command: COPY canaries TO STDOUT
        CONTINUES
      - name: pg_password
        kind: postgres
        auth: {host: HOST, port: PORT, user: postgres, password: "{{ keychain.c2 }}", database: "{{ keychain.c0 }}"}
        query: SELECT 1
        CONTINUES
      - name: duck
        kind: duckdb
        query: "SELECT unnest($all) AS secret"
        params: {all: [EVERY]}
        CONTINUES
      - name: duck_error
        kind: duckdb
        query: "SELECT * FROM '{{ keychain.c0 }}.parquet'"
        CONTINUES
      - name: lite
        kind: sqlite
        file: /FOLDER/user.db
        commands: ["CREATE TABLE t (a)", "INSERT INTO t SELECT value FROM json_each(:all)", "SELECT a, hex(a) AS h FROM t"]
        params: {all: "{{ every_secret.data | tojson }}"}
        CONTINUES
      - name: lite_error
        kind: sqlite
        file: /FOLDER/user.db
        query: "SELECT {{ keychain.c0 }} FROM t"
        CONTINUES
      - name: kv
        kind: nats
        auth: NATS
        action: kv_put
        bucket: CANARIES
        key: all
        data: [EVERY]
        CONTINUES
      - {name: kv_back, kind: nats, auth: NATS, action: kv_get, bucket: CANARIES, key: all, CONTINUES}
      - name: nats_error
        kind: nats
        auth: NATS
        action: kv_get
        bucket: "{{ keychain.c0 }}"
        key: x
        CONTINUES
      - name: stored
        kind: object
        auth: s3
        uri: s3://BUCKET/canaries.json
        data: [EVERY]
        CONTINUES
      - {name: stored_back, kind: object, auth: s3, uri: s3://BUCKET/canaries.json, CONTINUES}
      - name: object_error
        kind: object
        auth: {access_key_id: "{{ keychain.c0 }}", secret_access_key: "{{ keychain.c4 }}", endpoint: ENDPOINT}
        uri: "s3://BUCKET/{{ keychain.c8 }}.json"
        CONTINUES
      - name: moved
        kind: transfer
        data: [{secret: "{{ keychain.c0 }}"}, {secret: "{{ keychain.c1 }}"}]
        targets:
          - {kind: postgres, auth: PG, table: moved}
          - {kind: sqlite, file: /FOLDER/user.db, table: moved}
          - {kind: http, url: "http://127.0.0.1:1/?t={{ keychain.c4 }}", on_error: warn}
          - {kind: postgres, auth: PG, table: "{{ keychain.c8 }}", create: false, on_error: warn}
        CONTINUES
      - name: move_error
        kind: transfer
        data: [{secret: "{{ keychain.c1 }}"}]
        targets: [{kind: postgres, auth: PG, table: canaries}]
        CONTINUES
      - {name: block, kind: workbook, block: block, input: {secrets: [EVERY]}, CONTINUES}
      - name: child
        kind: playbook
        path: child.yaml
        payload: {token: "{{ pg_rows.rows[0].secret }}", all: "{{ kv_back.data }}"}
        CONTINUES
      - {name: resolved, kind: resolve, ref: "{{ pg_many.ref }}", limit: 5, CONTINUES}
      - {name: last, kind: python, input: {secret: "{{ keychain.c5 }}"}, code: "raise RuntimeError(secret)"}
"""
CHILD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: child}
workload: {token: none, all: none}
workflow:
  - step: start
    tool: {kind: python, input: {token: "{{ workload.token }}", all: "{{ workload.all }}"}, code: "print(token, all); result = [token, all]"}
"""


def test_no_secret_is_found_after_databases_queues_stores_and_calls(
    tmp_path, monkeypatch, caplog, postgres, database, nats_server, s3, bucket
):
    secrets = canaries()
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home"
    monkeypatch.setenv("NOETL_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    user = tmp_path / "user"
    user.mkdir()
    keychain = "\n".join(f"  - {{name: c{n}, kind: env, var: CANARY_{n}}}" for n in range(COUNT))
    keychain += f"\n  - {{name: s3, kind: static, value: {json.dumps(s3)}}}"
    words = {
        "KEYCHAIN": keychain, "EVERY": ", ".join(f'"{{{{ keychain.c{n} }}}}"' for n in range(COUNT)), "PG": database,
        "CONTINUES": "spec: {timeout: 60, policy: {rules: [{else: {then: {do: continue}}}]}}", "HOST": postgres["host"],
        "PORT": str(postgres["port"]), "NATS": nats_server, "CANARIES": bucket, "BUCKET": bucket,
        "ENDPOINT": s3["endpoint"], "/FOLDER": str(user),
    }  # fmt: skip
    names = ", ".join(f"keychain.c{n}" for n in range(COUNT))
    text = STORES.replace("{{ every_secret.data | tojson }}", f"{{{{ [{names}] | tojson }}}}")
    for word, meant in words.items():
        text = text.replace(word, meant)
    (tmp_path / "child.yaml").write_text(CHILD)
    (tmp_path / "canaries.yaml").write_text(text)
    events = []

    async def run():
        async with await open_local(home=home) as engine:
            return await engine.run(tmp_path / "canaries.yaml", on_event=events.append, timeout=120)

    result = asyncio.run(run())
    assert result.status == "failed"
    done = {event.body.task: event.body.outcome for event in events if isinstance(event.body, TaskDone)}
    failed = {task: outcome.error.kind for task, outcome in done.items() if outcome.error}
    assert failed == {
        "pg_constraint": "db.constraint", "pg_syntax": "db.syntax", "pg_password": "auth", "duck_error": "not_found",
        "lite_error": "db.syntax", "nats_error": "not_found", "object_error": "not_found", "move_error": "db.constraint",
        "last": "python",
    }  # fmt: skip
    assert len(done) == 24
    look_everywhere(home, secrets, result=repr(result), events=repr(events), log=caplog.text)
