"""Editor services: hover, completion, summary and the run form."""

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.language.editor.autocomplete import complete
from noetl.core.language.editor.hover import hover
from noetl.core.language.editor.run_form import form_document, values_document
from noetl.core.language.editor.summary import summarize
from noetl.tools import registry as tools

SPECS = tools.specs()

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: words}
keychain:
  - name: shop
    kind: env
    var: SHOP_TOKEN
workload:
  # How many pages to read.
  pages: 3
  ratio: 0.5  # between 0 and 1
  live: true
  names: [a, b]
  where: {city: Oslo}
  greeting: Hello  # said first
  url: "http://{{ workload.greeting }}.example"
  password: hunter2
  note: "#1"
  nothing:
workflow:
  - step: start
    loop: {in: "{{ workload.names }}", iterator: who}
    tool:
      - name: fetch
        kind: http
        input:
          url: "{{ workload.url }}/{{ iter.who }}"
        set:
          ctx.seen: "{{ workload.region }}{{ workload.maybe | default('x') }}"
    next:
      arcs:
        - step: end
  - step: end
    tool: {kind: noop}
"""


def place_of(marked: str, text: str = TEXT) -> tuple[int, int]:
    """Line and column at which a piece of the text stands."""
    row = next(number for number, line in enumerate(text.split("\n"), 1) if marked in line)
    return row, text.split("\n")[row - 1].index(marked) + 1


@pytest.mark.parametrize(
    ("piece", "word", "doc"),
    [
        ("workflow:", "workflow", "The steps"),
        ("iterator", "iterator", "item's name"),
        ("noop", "noop", ""),
        ("who}", None, ""),
        ('url: "{{ workload.url', "url", "http or https"),
        ("kind: http", "kind", "The tool"),
        ("http\n", "http", ""),
        ("var: SHOP", "var", ""),
        ("workload.names", "workload", "defaults"),
        ("iter.who", "iter", "item"),
        ("pages: 3", None, ""),
        ("step: end", "step", "target"),
    ],
)
def test_hover_shows_the_documentation(piece, word, doc):
    line, column = place_of("kind: http") if piece == "http\n" else place_of(piece)
    found = hover(TEXT, line, column + (6 if piece == "http\n" else 0), SPECS)
    assert (found.word if found else None) == word
    if found:
        assert doc in found.doc
        assert TEXT.split("\n")[line - 1][found.column - 1 : found.end_column - 1] == word


def test_hover_never_raises_on_incomplete_text():
    half = "a: [\n\t{{\n - b:\n  input:\n    x: {{ wor"
    for line in range(8):
        for column in range(1, 20):
            hover(half, line, column, SPECS)


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("{{ work", {"workload"}),
        (
            "{{ workload.",
            {"pages", "ratio", "live", "names", "where", "greeting", "url", "password", "note", "nothing"},
        ),
        ("{{ iter.wh", {"who"}),
        ("{{ ctx.", {"seen"}),
        ("{{ keychain.", {"shop"}),
        ("{{ steps.", {"start", "end"}),
        ("{{ output.st", {"status"}),
        ("{{ workload.pages }} ", set()),
    ],
)
def test_completion_knows_the_names_inside_a_template(begun, offered):
    text = TEXT + f"    desc: {begun}"
    last = text.count("\n") + 1
    column, completions = complete(text, last, len(f"    desc: {begun}") + 1, SPECS)
    assert {word.word for word in completions} == offered
    typed = begun.rpartition(".")[2].rpartition(" ")[2]
    assert not completions or column == len(f"    desc: {begun}") + 1 - len(typed)


@pytest.mark.parametrize(
    ("begun", "some", "none"),
    [
        ("    tool: {ki", {"kind"}, {"name"}),
        ("    tool: {kind: ht", {"http"}, set()),
        ("    tool: {kind: http, me", {"method"}, {"kind"}),
        ('    tool: {kind: http, url: "{{ workload.url }}, {x", spec: {ti', {"timeout"}, {"kind"}),
        ("    next: {arcs: [{step: a}, {step: ", {"start", "end"}, set()),
        ("    next: {arcs: [{step: a}, {wh", {"when"}, {"step"}),
        ("    next: {spec: {mode: in", {"inclusive"}, {"exclusive"}),
        ("    tool: {kind: noop}, {", set(), {"kind"}),
    ],
)
def test_completion_works_inside_braces(begun, some, none):
    text = TEXT + "  - step: more\n" + begun
    column, completions = complete(text, text.count("\n") + 1, len(begun) + 1, SPECS)
    found = {word.word for word in completions}
    assert some <= found
    assert not none & found
    typed = begun.rpartition(" ")[2].lstrip("{[")
    assert not found or column == len(begun) + 1 - len(typed)


def test_completion_offers_a_kinds_parameters_inside_its_input():
    text = TEXT.replace("        set:\n", "          me\n        set:\n", 1)
    line, column = place_of("          me", text)
    _, completions = complete(text, line, column + 12, SPECS)
    assert "method" in {word.word for word in completions}


def form(text: str = TEXT) -> dict:
    compiled = compile_playbook(text, file="", specs=SPECS)
    assert compiled.playbook is not None, compiled.diagnostics
    return form_document(text, compiled.playbook)


def test_the_form_has_a_field_for_each_key_with_its_type():
    fields = {field["name"]: field for field in form()["fields"]}
    assert {name: field["type"] for name, field in fields.items()} == {
        "pages": "integer",
        "ratio": "number",
        "live": "boolean",
        "names": "list",
        "where": "mapping",
        "greeting": "text",
        "url": "template",
        "password": "text",
        "note": "text",
        "nothing": "any",
        "region": "any",
    }
    assert fields["names"]["default"] == ["a", "b"]


def test_lists_and_mappings_have_their_source_lines():
    text = TEXT.replace("  names: [a, b]\n", "  names:  # whom to greet\n    - a\n\n    # the other\n    - {b: 1}\n")
    fields = {field["name"]: field for field in form(text)["fields"]}
    assert fields["names"]["text"] == "- a\n\n# the other\n- {b: 1}"
    assert fields["names"]["help"] == "whom to greet"
    assert fields["where"]["text"] == "{city: Oslo}"


def test_texts_of_a_form_are_read_as_yaml():
    found = values_document({"n": "3", "on": "on", "yes": "true", "list": "- a\n- {b: 1}", "none": "", "bad": "[1"})
    assert found["values"] == {"n": 3, "on": "on", "yes": True, "list": ["a", {"b": 1}], "none": None}
    assert list(found["problems"]) == ["bad"]
    assert "not closed" in found["problems"]["bad"]


def test_the_summary_of_a_text():
    assert summarize("metadata: {name: a, desc: b}\nworkflow: [{step: x}, {step: y}]") == ("a", "b", 2)
    assert summarize("[") == summarize("- a") == ("", "", 0)


def test_comments_are_the_forms_help():
    completions = {field["name"]: field["help"] for field in form()["fields"]}
    assert completions["pages"] == "How many pages to read."
    assert completions["ratio"] == "between 0 and 1"
    assert completions["note"] == ""


def test_keys_without_default_are_required_and_secrets_are_not_shown():
    fields = {field["name"]: field for field in form()["fields"]}
    assert fields["region"]["required"]
    assert "maybe" not in fields
    assert fields["password"]["secret"]
    assert "hunter2" not in str(form())
    assert form()["keychain"] == [{"name": "shop", "kind": "env"}]


def test_the_fields_of_a_result_with_a_schema_are_completed():
    text = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: x}
workflow:
  - step: fetch
    tool:
      - name: get
        kind: python
        code: result = 1
        output:
          schema:
            type: object
            properties:
              id: {type: integer, description: The number.}
              customer: {type: object, properties: {name: {type: string}}}
    next: {arcs: [{step: use}]}
  - step: use
    tool: {kind: python, input: {x: "{{ fetch.data."""
    line = text.count("\n") + 1

    def offered(more: str = "") -> list[str]:
        whole = text + more
        return [word.word for word in complete(whole, line, len(whole.split("\n")[-1]) + 1, SPECS)[1]]

    assert offered() == ["id", "customer"]
    assert offered("customer.") == ["name"]
    assert offered("cu") == ["customer"]


WITH_SCHEMA = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: schemas}
workflow:
  - step: other
    tool: {kind: noop}
  - step: fetch
    tool:
      - name: get
        kind: http
        url: http://x
        output: {schema: {type: object, properties: {total: {type: integer}, lines: {type: array, items: {properties: {sku: {}}}}}}}
        set:
          ctx.a: "{{ TYPED
  - step: last
    tool: {kind: noop}
"""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fetch.data.", {"total", "lines"}),
        ("steps.fetch.data.t", {"total"}),
        ("fetch.data.lines.0.", {"sku"}),
        ("output.data.", {"total", "lines"}),
        ("output.data.lines.0.s", {"sku"}),
        ("other.data.", set()),
    ],
)
def test_fields_of_results_with_a_schema(typed, offered):
    text = WITH_SCHEMA.replace("TYPED", typed)
    line = next(number for number, each in enumerate(text.split("\n"), 1) if "ctx.a" in each)
    column = len(text.split("\n")[line - 1]) + 1
    assert {word.word for word in complete(text, line, column, SPECS)[1]} == offered


def test_every_beginning_of_a_text_has_an_answer():
    """Half-written text raises nothing, wherever it ends."""
    for end in range(0, len(TEXT), 3):
        text = TEXT[:end]
        line, column = text.count("\n") + 1, len(text.rpartition("\n")[2]) + 1
        start, words = complete(text, line, column, SPECS)
        assert 1 <= start <= column
        typed = text.rpartition("\n")[2][start - 1 :]
        assert all(word.word.startswith(typed) for word in words)
        hover(text, line, column, SPECS)
