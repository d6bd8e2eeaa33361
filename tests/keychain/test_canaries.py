"""Two hundred secrets through tools and into every place where something is written: none is found there."""

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

from noetl.commands import program
from noetl.local import open_local
from noetl.model.events import TaskDone

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
    written["log"] = caplog.text.encode()
    written["result"] = repr(result).encode()
    written["events"] = repr(events).encode()
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
