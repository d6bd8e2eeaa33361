"""`noetl lsp` with a real client over stdio."""

from __future__ import annotations

import asyncio
import time

import pytest
from lsp_client import URI, EditorClient, applied, editor
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from noetl.runtime.printable import printable

pytestmark = pytest.mark.integration

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: orders}
keychain:
  - name: shop
    kind: env
    var: SHOP_TOKEN
workload:
  pages: 3
  name: "Zoë 🎉"
workflow:
  - step: start
    tool:
      - name: fetch
        kind: http
        url: "https://example.com/{{ workload.pages }}"
        headers: {Authorization: "Bearer {{ keychain.shop }}"}
        output:
          schema: {type: object, properties: {total: {type: integer, description: Sum of all orders.}, rows: {type: array}}}
        set: {ctx.total: "{{ output.data.total }}"}
    next:
      arcs:
        - step: report
          when: "{{ start.data.total > 0 and event.step == 'start' }}"
  - step: report
    tool:
      - name: print
        kind: python
        input: {total: "{{ ctx.total }}", rows: "{{ steps.start.data.rows }}"}
        code: result = total
"""


def run(work) -> None:
    """One session with a server of its own."""
    asyncio.run(asyncio.wait_for(work, 100))


@pytest.fixture(scope="module")
def session():
    """A loop and a client whose server all tests of this file share."""
    capabilities = lsp.ClientCapabilities(text_document=lsp.TextDocumentClientCapabilities())
    with asyncio.Runner() as runner:
        context = editor(capabilities=capabilities)
        client = runner.run(context.__aenter__())
        yield runner, client
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def with_editor(session):
    """Runs `work(client)` with the text open and checked."""
    runner, client = session

    async def start(work) -> None:
        client.open(TEXT)
        await client.diagnostics()
        await work(client)
        await client.close()

    return lambda work: runner.run(asyncio.wait_for(start(work), 100))


async def labels(client: EditorClient, position: lsp.Position) -> dict[str, lsp.CompletionItem]:
    parameters = lsp.CompletionParams(lsp.TextDocumentIdentifier(URI), position)
    found = await client.text_document_completion_async(parameters)
    return {item.label: item for item in found.items}


def test_diagnostics_follow_the_text(with_editor):
    async def work(client: EditorClient) -> None:
        assert await client.diagnostics() == []
        client.change(TEXT.replace("- step: report\n          when", "- step: reprot\n          when"))
        (found,) = [each for each in await client.diagnostics() if each.code == "unknown-step"]
        assert client.covered(found.range) == "reprot"
        assert found.severity == lsp.DiagnosticSeverity.Error
        assert 'did you mean "report"?' in found.message
        assert found.code_description.href.endswith("/unknown-step")
        client.change(TEXT)
        assert await client.diagnostics() == []

    with_editor(work)


def test_columns_are_utf16_units(with_editor):
    async def work(client: EditorClient) -> None:
        client.change(
            TEXT.replace("code: result = total", 'code: result = total\n        set: {ctx.a: "🎉 {{ ctx.totl }}"}')
        )
        (found,) = await client.diagnostics()
        assert found.code == "never-set"
        assert client.covered(found.range) == "ctx.totl"

    with_editor(work)


HALF_WRITTEN = [
    ("    next: {arcs: [{step: ", "yaml-syntax", None),
    ("    nex", "yaml-syntax", None),
    ('    desc: "{{ ctx.', "yaml-syntax", '"'),
    ('    set: {ctx.a: "{{ ctx. }}"}', "template-syntax", None),
    ("    tool: {kind: }", "wrong-type", None),
    ("    tool: {kind: ht}", "unknown-kind", "ht"),
    ("\t", "yaml-syntax", None),
]


def test_half_written_text_has_a_diagnostic(with_editor):
    async def work(client: EditorClient) -> None:
        for begun, code, covered in HALF_WRITTEN:
            client.change(TEXT + "  - step: more\n" + begun + "\n")
            found = [each for each in await client.diagnostics() if each.code == code]
            assert found, begun
            assert covered is None or client.covered(found[0].range) == covered

    with_editor(work)


def test_an_incremental_change_is_checked(with_editor):
    async def work(client: EditorClient) -> None:
        at = client.place("- step: report\n          when", len("- step: "))
        client.edit(lsp.Range(at, lsp.Position(at.line, at.character + len("report"))), "nowhere")
        assert "unknown-step" in {each.code for each in await client.diagnostics()}

    with_editor(work)


def test_other_files_have_no_diagnostics_and_no_completion(with_editor):
    async def work(client: EditorClient) -> None:
        uri = "file:///project/compose.yaml"
        client.open("services: {web: {image: nginx}}\n", uri)
        assert await client.diagnostics(uri) == []
        parameters = lsp.CompletionParams(lsp.TextDocumentIdentifier(uri), lsp.Position(0, 0))
        assert await client.text_document_completion_async(parameters) is None
        client.open("metadata: {}\n", "untitled:new", language="noetl")
        assert {each.code for each in await client.diagnostics("untitled:new")} >= {"missing-key"}

    with_editor(work)


def test_resource_files_are_checked(with_editor):
    async def work(client: EditorClient) -> None:
        uri = "file:///project/nightly.resource.yaml"
        client.open("kind: Schedul\nname: nightly\n", uri)
        assert await client.diagnostics(uri)

    with_editor(work)


def test_closing_a_document_removes_its_diagnostics(with_editor):
    async def work(client: EditorClient) -> None:
        client.change("apiVersion: noetl.io/v2\n")
        assert await client.diagnostics()
        await client.close()
        client.open(TEXT)
        assert await client.diagnostics() == []

    with_editor(work)


COMPLETIONS = [
    ("  - st", {"step"}),
    ("    to", {"tool"}),
    ("    tool: {kind: ", {"http", "python", "postgres"}),
    ("    next:\n      arcs:\n        - step: ", {"start", "report", "more"}),
    ("    next: {arcs: [{step: re", {"report"}),
    ('    desc: "{{ ', {"workload", "ctx", "start", "report"}),
    ('    desc: "🎉 {{ workload.', {"pages", "name"}),
    ('    desc: "{{ start.', {"data", "total", "rows"}),
    ('    desc: "{{ start.data.to', {"total"}),
    ('    desc: "{{ ctx.', {"total"}),
    ('    desc: "{{ keychain.', {"shop"}),
    ('    desc: "{{ ctx.total | def', {"default"}),
    ("    desc: \"{{ done('", {"start", "report"}),
    ("    tool:\n      - name: a\n        kind: object\n        action: p", {"put"}),
    ("    tool: {kind: object, action: p", {"put"}),
    ("    tool:\n      - name: a\n        kind: http\n        auth: ", {"shop"}),
    (
        "    tool:\n      - name: first\n        kind: noop\n        spec: {policy: {rules: [{else: {then: {do: jump, to: ",
        {"first"},
    ),
]


def test_completion(with_editor):
    async def work(client: EditorClient) -> None:
        for begun, some in COMPLETIONS:
            text = TEXT + "  - step: more\n" + begun
            client.change(text)
            last = text.rpartition("\n")[2]
            position = lsp.Position(text.count("\n"), len(last.encode("utf-16-le")) // 2)
            found = await labels(client, position)
            assert some <= found.keys(), begun
            item = found[sorted(some)[0]]
            assert item.text_edit is not None
            assert applied(text, [item.text_edit]).endswith(item.label)
            assert item.label.startswith(client.covered(item.text_edit.range))

    with_editor(work)


def test_hover_documents_keys_kinds_and_diagnostics(with_editor):
    async def work(client: EditorClient) -> None:
        async def shown(piece: str, offset: int = 0) -> str:
            found = await client.text_document_hover_async(lsp.HoverParams(**client.at(piece, offset)))
            return found.contents.value if found is not None else ""

        assert "arcs" in await shown("next:")
        assert "Required: `url`" in await shown("kind: http", len("kind: "))
        assert await shown("Sum of all") == ""
        client.change(TEXT.replace("ctx.total }}", "ctx.totl }}"))
        assert "A value that is never set" in await shown("ctx.totl", 5)

    with_editor(work)


def test_definition_and_references_of_a_step(with_editor):
    async def work(client: EditorClient) -> None:
        found = await client.text_document_definition_async(lsp.DefinitionParams(**client.at("steps.start", 7)))
        assert [each.range.start for each in found] == [client.place("- step: start", len("- step: "))]
        found = await client.text_document_definition_async(
            lsp.DefinitionParams(**client.at("- step: report\n          when", 10))
        )
        assert [each.range.start for each in found] == [client.place("  - step: report\n    tool", len("  - step: "))]
        context = lsp.ReferenceContext(include_declaration=True)
        found = await client.text_document_references_async(
            lsp.ReferenceParams(context=context, **client.at("- step: start", 10))
        )
        assert [client.covered(each.range) for each in found] == ["start"] * 4
        found = await client.text_document_definition_async(lsp.DefinitionParams(**client.at("keychain.shop", 10)))
        assert [each.range.start for each in found] == [client.place("name: shop", len("name: "))]

    with_editor(work)


def test_definition_works_in_text_that_is_not_yaml(with_editor):
    async def work(client: EditorClient) -> None:
        client.change(TEXT + "  - step: more\n    next: {arcs: [{step: report")
        found = await client.text_document_definition_async(lsp.DefinitionParams(**client.at("{step: report", 8)))
        assert [each.range.start for each in found] == [client.place("  - step: report\n    tool", len("  - step: "))]
        symbols = await client.text_document_document_symbol_async(
            lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(URI))
        )
        assert [each.name for each in symbols] == ["start", "report", "more"]

    with_editor(work)


def test_the_outline_has_steps_and_tasks(with_editor):
    async def work(client: EditorClient) -> None:
        symbols = await client.text_document_document_symbol_async(
            lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(URI))
        )
        assert [(each.name, [task.name for task in each.children]) for each in symbols] == [
            ("start", ["fetch"]),
            ("report", ["print"]),
        ]

    with_editor(work)


def test_rename_changes_arcs_and_templates(with_editor):
    async def work(client: EditorClient) -> None:
        place = client.at("- step: report\n          when", 9)
        assert (
            await client.text_document_prepare_rename_async(lsp.PrepareRenameParams(**place))
        ).placeholder == "report"
        edit = await client.text_document_rename_async(lsp.RenameParams(new_name="summary", **place))
        assert client.applied(edit) == TEXT.replace("report", "summary")
        place = client.at("steps.start", 6)
        with pytest.raises(JsonRpcException, match="already a step"):
            await client.text_document_rename_async(lsp.RenameParams(new_name="report", **place))
        edit = await client.text_document_rename_async(lsp.RenameParams(new_name="load", **place))
        client.change(client.applied(edit))
        assert "start" not in client.texts[URI]
        assert await client.diagnostics() == []

    with_editor(work)


def test_rename_of_a_task(with_editor):
    async def work(client: EditorClient) -> None:
        client.change(TEXT.replace('set: {ctx.total: "{{ output.data', 'set: {ctx.total: "{{ fetch.data'))
        place = client.at("- name: fetch", 9)
        found = await client.text_document_prepare_rename_async(lsp.PrepareRenameParams(**place))
        assert found.placeholder == "fetch"
        edit = await client.text_document_rename_async(lsp.RenameParams(new_name="load", **place))
        assert client.applied(edit) == client.texts[URI].replace("fetch", "load")
        with pytest.raises(JsonRpcException, match="cannot rename"):
            await client.text_document_rename_async(lsp.RenameParams(new_name="output", **place))

    with_editor(work)


def test_registered_schemas_are_completed(tmp_path, monkeypatch):
    from noetl.cli.target import Target

    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    schema = {"type": "object", "properties": {"paid": {"type": "boolean"}}}
    older = {"type": "object", "properties": {"open": {"type": "boolean"}}}
    for each in (older, schema):
        Target().call(lambda backend, each=each: backend.register_schema("shop/orders", each, "none"))
    begin = TEXT.index("{type: object")
    inline = TEXT[begin : TEXT.index("\n", begin)]

    async def work() -> None:
        async with editor() as client:

            async def offered(text: str, piece: str) -> list[str]:
                client.change(text)
                place = lsp.TextDocumentPositionParams(lsp.TextDocumentIdentifier(URI), client.place(piece, len(piece)))
                found = await client.text_document_completion_async(
                    lsp.CompletionParams(place.text_document, place.position)
                )
                return [item.label for item in found.items]

            client.open(TEXT)
            assert await offered(TEXT.replace(inline, "sh"), "schema: sh") == ["shop/orders", "shop/orders/v2"]
            newest = TEXT.replace(inline, "shop/orders")
            assert await offered(newest.replace("data.rows", "data."), "start.data.") == ["paid"]
            assert await offered(newest.replace("orders\n        set", "orders/v1\n        set"), "start.data.") == [
                "open"
            ]

    run(work())


def test_quick_fixes_apply_what_the_hint_says(with_editor):
    async def work(client: EditorClient) -> None:
        client.change(TEXT.replace("ctx.total }}", "ctx.totl }}").replace("tool:", "tol:", 1))
        for wanted in ("Replace `tol` with `tool`", "Replace `totl` with `total`"):
            found = await client.diagnostics()
            whole = lsp.Range(lsp.Position(0, 0), lsp.Position(100, 0))
            actions = await client.text_document_code_action_async(
                lsp.CodeActionParams(lsp.TextDocumentIdentifier(URI), whole, lsp.CodeActionContext(found))
            )
            action = next(each for each in actions if each.title == wanted)
            client.change(client.applied(action.edit))
        assert client.texts[URI] == TEXT
        assert await client.diagnostics() == []

    with_editor(work)


def test_a_warning_can_be_ignored(with_editor):
    async def work(client: EditorClient) -> None:
        client.change(TEXT.replace("ctx.total }}", "ctx.totl }}"))
        found = await client.diagnostics()
        parameters = lsp.CodeActionParams(lsp.TextDocumentIdentifier(URI), found[0].range, lsp.CodeActionContext(found))
        actions = await client.text_document_code_action_async(parameters)
        client.change(client.applied(next(each for each in actions if "Ignore" in each.title).edit))
        assert "never-set" not in {each.code for each in await client.diagnostics()}

    with_editor(work)


V10 = TEXT.replace("        input: {total", "        args: {total").replace("output.data.total", "outcome.data.total")


@pytest.mark.parametrize("resolves", [True, False])
def test_migration_is_a_quick_fix(resolves):
    support = lsp.ClientCodeActionResolveOptions(["edit"]) if resolves else None
    code_action = lsp.CodeActionClientCapabilities(resolve_support=support, data_support=True)
    capabilities = lsp.ClientCapabilities(
        lsp.WorkspaceClientCapabilities(), lsp.TextDocumentClientCapabilities(code_action=code_action)
    )

    async def work(client: EditorClient) -> None:
        found = await client.diagnostics()
        assert {each.code for each in found} == {"v10-args", "v10-outcome"}
        parameters = lsp.CodeActionParams(lsp.TextDocumentIdentifier(URI), found[0].range, lsp.CodeActionContext(found))
        actions = await client.text_document_code_action_async(parameters)
        action = next(each for each in actions if each.title.startswith("Migrate"))
        if resolves:
            assert action.edit is None
            action = await client.code_action_resolve_async(action)
        client.change(client.applied(action.edit))
        assert "args:" not in client.texts[URI]
        assert await client.diagnostics() == []

    async def session() -> None:
        async with editor(capabilities=capabilities) as client:
            client.open(V10)
            await work(client)

    run(session())


def test_options_of_the_client():
    async def session() -> None:
        async with editor(options={"strict": True}) as client:
            client.open(V10)
            found = await client.diagnostics()
            assert {each.severity for each in found} == {lsp.DiagnosticSeverity.Error}

    run(session())


def test_formatting_is_that_of_fmt(with_editor):
    from noetl.core.language.rewrite.format import format_text
    from noetl.tools import registry

    messy = TEXT.replace(
        "    next:\n      arcs:\n        - step", "    next:\n        arcs:\n            - step"
    ).replace("          when", "              when")

    async def work(client: EditorClient) -> None:
        client.change(messy)
        options = lsp.FormattingOptions(tab_size=2, insert_spaces=True)
        parameters = lsp.DocumentFormattingParams(lsp.TextDocumentIdentifier(URI), options)
        edits = await client.text_document_formatting_async(parameters)
        assert applied(messy, edits) == format_text(messy, registry.specs()) != messy
        client.change(TEXT[: TEXT.index("workflow")] + "workflow: [")
        assert not await client.text_document_formatting_async(parameters)

    with_editor(work)


def test_a_large_playbook_is_answered_while_it_is_compiled():
    """1,000 steps: completion does not wait for the compiler."""
    step = '  - step: s{0}\n    tool:\n      - name: fetch\n        kind: http\n        url: "http://x/{{{{ workload.n }}}}"\n    next: {{arcs: [{{step: s{1}}}]}}\n'
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: big}\nworkload: {n: 1}\nworkflow:\n"
    text += (
        "".join(step.format(number, number + 1) for number in range(1000)) + "  - step: s1000\n    tool: {kind: noop}\n"
    )

    async def session() -> None:
        async with editor() as client:
            client.open(text)
            assert await client.diagnostics() == []
            client.change(text + "    ne")
            position = lsp.Position(text.count("\n"), 6)
            started = time.monotonic()
            assert "next" in await labels(client, position)
            assert time.monotonic() - started < 5
            found = await client.text_document_definition_async(
                lsp.DefinitionParams(lsp.TextDocumentIdentifier(URI), client.place("{step: s500}", 8))
            )
            assert [client.covered(each.range) for each in found] == ["s500"]

    run(session())


def test_texts_of_the_playbook_are_shown_without_control_characters(with_editor):
    async def work(client: EditorClient) -> None:
        hidden = r"\e]0;t\a\u202e\u200b\U000e0041"
        client.change(
            TEXT.replace("kind: http", f'kind: "{hidden}"').replace(
                "step: report\n    tool", f'step: "{hidden}"\n    tool'
            )
        )
        messages = [each.message for each in await client.diagnostics()]
        symbols = await client.text_document_document_symbol_async(
            lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(URI))
        )
        shown = "\n".join([*messages, *(each.name for each in symbols)])
        assert r"\x1b]0;t" in shown and printable(shown) == shown

    with_editor(work)
