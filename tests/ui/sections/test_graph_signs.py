"""Signs on the graph: compensation, keys and priorities of arcs, steps that are added at run time."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab

TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shop/signs}
workflow:
- step: book
  spec:
    policy:
      compensation: {tool: [{name: give_back, kind: noop}]}
  tool: {kind: noop, input: {customer: c7, urgent: 5}}
  next:
    arcs:
    - step: apply
      spec: {dedupe: "{{ output.data.customer }}", partition: "{{ output.data.customer }}", priority: 5}
- step: apply
  tool: {kind: noop}
  next: {arcs: [{step: plan}]}
- step: plan
  spec:
    policy:
      synthesize: {from: "{{ output.data.plan }}", limits: {steps: 5, kinds: [noop]}}
  tool:
    kind: noop
    input:
      plan:
      - {step: clean, tool: {kind: noop}, next: {arcs: [{step: publish}]}}
      - {step: publish, tool: {kind: noop}}
"""


def test_the_graph_of_an_execution_shows_its_signs(
    cluster: Cluster, opened: Callable[..., Tab], picture: Callable[[Tab, str], None]
):
    status, answer = cluster.ask("POST", "/api/catalog/register", {"content": TEXT})
    assert status == 201, answer
    id = cluster.ask("POST", "/api/execute", {"path": "shop/signs"})[1]["execution_id"]
    document = cluster.finished(id)
    assert document["status"] == "success", document["error"]
    tab = opened(f"/executions/{id}")
    page = tab.page
    book = page.locator(".net-step", has_text="book")
    expect(book.get_by_title("undone by: give_back")).to_have_text("↩")
    expect(page.locator(".net-step", has_text="plan").get_by_title("may add up to 5 steps at run time")).to_have_text(
        "+"
    )
    for name in ("clean", "publish"):
        expect(page.locator(".net-step.made", has_text=name).get_by_title("added at run time")).to_have_text("✧")
    arc = page.get_by_text("⊕ customer", exact=False)
    expect(arc).to_be_visible()
    expect(arc).to_contain_text("⇶ customer")
    expect(arc).to_contain_text("↑ 5")
    expect(page.locator(".net-arc.made.taken").first).to_be_attached()
    expect(page.locator(".net-arc.made.idle")).to_have_count(0)
    assert tab.serious_violations() == []
    picture(tab, "graph-signs")
