"""What leaves as a document comes back as what it was."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from noetl import open_local
from noetl.core.model.events import envelope, recorded_of
from noetl.server.read_models.documents import execution_document, result_of, row_of, summary_document, summary_of, when
from noetl.storage.ports.events import ExecutionSummary

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: rich}
workload: {rows: [[1, 2], [3]]}
workflow:
  - step: start
    loop: {in: "{{ workload.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: 2}}
    tool:
      - name: maybe
        kind: python
        input: {attempt: "{{ _attempt }}", row: "{{ iter.row }}"}
        code: |
          if attempt == 1:
              raise RuntimeError("not yet")
          result = sum(row)
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 2}}]}}
    next:
      arcs:
        - step: end
          set: {ctx.seen: true}
  - step: end
    tool: {kind: python, code: "raise ValueError('the end')"}
"""


def test_events_summaries_and_results_are_read_back_from_their_documents():
    asyncio.run(_read_back())


async def _read_back():
    async with await open_local(store="memory:") as engine:
        result = await engine.run(TEXT)
        found = result.execution_id
        log = await engine.orchestrator.events(found)
        for recorded in log:
            wire = msgspec.json.decode(msgspec.json.encode(envelope(recorded)))
            back = recorded_of(wire)
            assert envelope(back) == envelope(recorded)
            assert (back.body, back.seq, back.parent_seq) == (recorded.body, recorded.seq, recorded.parent_seq)
        assert any(getattr(recorded.body, "path", None) == (1,) for recorded in log)
        summary = await engine.orchestrator.summary(found)
        document = execution_document(summary, await engine.orchestrator.progress(found))
        assert result_of(document) == result
        back_summary = summary_of(summary_document(summary))
        for name in ("started_at", "ended_at"):
            assert getattr(back_summary, name) == pytest.approx(getattr(summary, name), abs=1e-5)
        assert (
            summary_document(back_summary)["error"]
            == summary_document(summary)["error"]
            == document["error"]["message"]
        )


@pytest.mark.parametrize(
    "at", [0.0, 1.0, 1_763_272_800.0, 1_763_272_800.000001, 1_763_272_800.9999999, 1_763_272_801.25]
)
def test_the_instants_of_a_row_have_the_format_of_all_documents(at):
    row = msgspec.json.decode(msgspec.json.encode(row_of(ExecutionSummary("7", "p", "success", at, ended_at=at))))
    assert (row["started_at"], row["ended_at"], row["duration_ms"]) == (when(at), when(at), 0.0)
