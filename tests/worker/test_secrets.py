from __future__ import annotations

import asyncio
import base64
from urllib.parse import quote

import pytest
from aiohttp import web
from work_link import Bench

from noetl.core.model.events import StepDone, StepFailed, TaskDone
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.playbook import KeychainEntry
from noetl.runtime.network_policy import AddressPolicy
from noetl.runtime.resources import close_loop_resources
from noetl.worker import cache
from noetl.worker.cache import expiring_entries
from noetl.worker.host import HostServices, TaskObserver

CANARY = 'c4n"ary/+secret value'

TEXT = """
keychain: [{name: token, kind: env, var: X}, {name: db, kind: credential}]
workflow:
  - step: s
    tool:
      - name: a
        kind: act
        input: {header: "Bearer {{ keychain.token }}"}
        set: {iter.seen: "{{ output.data.plain }}", step.url: "{{ output.data.url }}"}
      - {name: b, kind: act, input: {again: "{{ a.plain }}"}}
"""


def echoing(seen):
    async def act(call):
        seen.append(call.input)
        encoded = base64.b64encode(CANARY.encode()).decode()
        call.host.log(f"header is {CANARY}")
        return ok({"plain": CANARY, "url": quote(CANARY, safe=""), "b64": encoded, "in": f"x{CANARY}x", CANARY: 1})

    return act


def test_a_secret_reaches_the_tool_and_no_event_result_or_log():
    lines = []

    class Lines(TaskObserver):
        def line(self, line):
            lines.append(line.line)

    seen = []
    bench = Bench(TEXT, act=echoing(seen))
    bench.runner.services = HostServices(bench.results, AddressPolicy(), Lines())
    bench.link.keychain = {"token": CANARY}
    events = bench.run()
    assert isinstance(events[-1], StepDone)
    assert seen[0] == {"header": f"Bearer {CANARY}"} and seen[1] == {"again": CANARY}  # data inside the pipeline
    written = bench.link.written() + b"".join(bench.results.kept.values()) + "".join(lines).encode()
    for form in (
        CANARY.encode(),
        b'c4n\\"ary',
        quote(CANARY, safe="").encode(),
        base64.b64encode(CANARY.encode())[:20],
    ):
        assert form not in written
    assert lines == ["header is ***"] * 2
    first = next(event for event in events if isinstance(event, TaskDone))
    assert first.outcome.data["plain"] == "***" and first.patch["iter"]["seen"] == "***"
    assert first.position.iter["seen"] == "***" and first.path == ()


def test_a_large_payload_is_masked_before_it_is_stored():
    async def act(call):
        return ok([CANARY] * 50_000)

    bench = Bench(TEXT, act=act)
    bench.link.keychain = {"token": CANARY}
    bench.run()
    assert bench.results.kept and all(b"ary/+secret" not in data for data in bench.results.kept.values())


def test_an_error_that_quotes_a_secret_is_masked():
    async def act(call):
        return error("auth", f"bad token {CANARY}", details={"sent": CANARY}, data={"body": CANARY})

    bench = Bench(TEXT, act=act)
    bench.link.keychain = {"token": CANARY}
    events = bench.run()
    assert isinstance(events[-1], StepFailed) and b"ary/+secret" not in bench.link.written()
    assert events[-1].output.error.message == "bad token ***"


def test_a_missing_secret_is_an_error_outcome_of_the_task_that_reads_it():
    async def act(call):
        return ok(1)

    events = Bench(TEXT, act=act).run()
    assert events[-1].output.error.kind == "auth" and "token" in events[-1].output.error.message


def test_a_tool_reads_a_credential_by_name_and_it_is_masked_too():
    async def act(call):
        fields = await call.host.credential("db")
        one = await call.host.credential("keychain/token")
        return ok({"user": fields["user"], "password": fields["password"], "one": one["value"]})

    bench = Bench(
        "keychain: [{name: db, kind: credential}]\nworkflow: [{step: s, tool: [{name: a, kind: act}]}]", act=act
    )
    bench.link.keychain = {"db": {"user": "ann", "password": "hunter22"}, "token": "tok-12345"}
    assert bench.run()[-1].output.data == {"user": "ann", "password": "***", "one": "***"}


def test_a_credential_that_is_missing_is_an_auth_error():
    async def act(call):
        await call.host.credential("nobody")
        return ok(1)

    output = Bench("workflow: [{step: s, tool: [{name: a, kind: act}]}]", act=act).run()[-1].output
    assert output.error.kind == "auth" and "nobody" in output.error.message


def test_secrets_are_cached_between_iterations():
    async def check():
        requested = []
        bench = Bench(TEXT, act=echoing([]))
        bench.link.keychain = {"token": CANARY}
        real = bench.link.secrets

        async def secrets(execution_id, names):
            requested.append(names)
            return await real(execution_id, names)

        bench.link.secrets = secrets
        async with bench.running():
            bench.link.offer(*[bench.order(run=f"1:s:{n}") for n in range(1, 9)])
            await bench.link.until_ended(*[f"1:s:{n}" for n in range(1, 9)])
            assert len(requested) <= 4
            bench.clock.time += 60
            bench.link.offer(bench.order(run="1:s:9"))
            await bench.link.until_ended("1:s:9")
            assert requested[-1] == ["token"]

    asyncio.run(check())


# ── the host's other doors ──────────────────────────────────────────────────────────────


def test_a_tool_streams_results_in_and_out():
    async def act(call):
        async def chunks():
            yield b'{"a": '
            yield b"1}"

        reference = await call.host.put_result(chunks(), content_type="application/json", rows=1)
        back = b"".join([chunk async for chunk in call.host.open_result(reference, offset=1, length=3)])
        return Outcome(status="ok", ref=reference, meta={"back": back.decode()})

    text = "workflow: [{step: s, tool: [{name: a, kind: act}, {name: b, kind: noop, input: {x: '{{ a.a }}'}}]}]"
    events = Bench(text, act=act).run()
    first = next(event for event in events if isinstance(event, TaskDone))
    assert first.outcome.ref.meta.rows == 1 and first.outcome.meta["back"] == '"a"'
    assert events[-1].output.data == {"x": 1}


def test_paths_and_sources_are_relative_to_the_playbook(tmp_path):
    (tmp_path / "code.py").write_text("result = 1")
    seen = []

    async def act(call):
        seen.append(call.host.resolve_path("data/x.csv"))
        return ok((await call.host.fetch_source("code.py")).decode())

    bench = Bench("workflow: [{step: s, tool: [{name: a, kind: act}]}]", act=act)
    bench.link.playbooks["d"] = type(bench.book)(
        name="p", path="p", entry="s", steps=bench.book.steps, file=str(tmp_path / "p.yaml")
    )
    assert bench.run()[-1].output.data == "result = 1"
    assert seen == [str(tmp_path / "data/x.csv")]


def test_a_source_is_fetched_over_http_where_the_policy_allows_it():
    async def check() -> None:
        async def serve(request):
            return web.Response(text="result = 2") if request.path == "/code.py" else web.Response(status=404)

        app = web.Application()
        app.router.add_get("/{name}", serve)
        server = web.AppRunner(app)
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]

        async def act(call):
            return ok((await call.host.fetch_source(f"http://127.0.0.1:{port}/{call.input['name']}")).decode())

        text = "workflow: [{step: s, tool: [{name: a, kind: act, input: {name: '{{ workload.name }}'}}]}]"
        try:
            there = (await Bench(text, act=act).once(workload={"name": "code.py"}))[-1].output
            gone = (await Bench(text, act=act).once(workload={"name": "gone.py"}))[-1].output
            strict = Bench(text, act=act)
            strict.runner.services = HostServices(strict.results, AddressPolicy(private=False), TaskObserver())
            denied = (await strict.once(workload={"name": "code.py"}))[-1].output
        finally:
            await close_loop_resources()
            await server.cleanup()
        assert there.data == "result = 2"
        assert gone.error.kind == "not_found" and "404" in gone.error.message
        assert denied.status == "error" and "127.0.0.1" in denied.error.message

    asyncio.run(check())


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("93.184.216.34", True), ("10.0.0.1", False), ("127.0.0.1", False), ("169.254.169.254", False),
        ("::1", False), ("::ffff:10.0.0.1", False), ("192.168.7.9", True), ("fe80::1%eth0", False), ("nonsense", False),
        ("0.0.0.0", False), ("224.0.0.1", False),
    ],
)  # fmt: skip
def test_a_setting_lists_the_allowed_private_networks(address, allowed):
    policy = AddressPolicy(private=False, networks=("192.168.7.0/24",))
    assert policy.allows(address) is allowed
    assert AddressPolicy().allows(address)


@pytest.mark.parametrize(("kind", "fetched"), [("oauth2", ["t1", "t2", "t3"]), ("env", ["t1", "t1", "t1"])])
def test_a_token_is_fetched_for_every_task(kind, fetched):
    """It may expire during a run; the keychain renews it. Other values are reused for a while."""
    seen, given = [], []

    async def act(call):
        seen.append(call.input["a"])
        return ok(None)

    bench = Bench(
        f"""
keychain: [{{name: token, kind: {kind}, token_url: "http://x", client_id: a, client_secret: b, var: X}}]
workflow:
  - step: s
    tool:
      - {{name: a, kind: act, input: {{a: "{{{{ keychain.token }}}}"}}}}
      - name: b
        kind: act
        input: {{a: "{{{{ keychain.token }}}}"}}
        spec: {{policy: {{rules: [{{when: "{{{{ _visit < 2 }}}}", then: {{do: jump, to: b}}}}]}}}}
""",
        act=act,
    )

    async def secrets(execution_id, names):
        given.append(names)
        return dict.fromkeys(names, f"t{len(given)}")

    bench.link.secrets = secrets
    assert isinstance(bench.run()[-1], StepDone)
    assert seen == fetched


def test_entries_that_read_a_token_expire_with_it():
    entries = [
        KeychainEntry("tok", "oauth2"), KeychainEntry("b", "bearer", {"token": "x {{ keychain.tok }}"}),
        KeychainEntry("c", "bearer", {"token": "b"}), KeychainEntry("d", "env", {"var": "X"}),
    ]  # fmt: skip
    assert expiring_entries(entries) == {"tok", "b", "c"}


def test_the_secrets_of_an_execution_that_goes_on_stay_known(monkeypatch):
    """An execution that was evicted would no longer mask the values that its earlier runs have read."""
    monkeypatch.setattr(cache, "MAX_EXECUTIONS", 2)
    found = Bench(TEXT).runner.cache
    first = found.secrets("1")
    for other in ("2", "3", "4"):
        found.secrets(other)
        assert found.secrets("1") is first
