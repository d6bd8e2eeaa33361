"""Migrated playbooks do what the originals did: the same events, the same outputs."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from noetl.core.language.rewrite.migrate.v10_to_canonical import migrate
from noetl.embedded import open_local
from noetl.tools import registry as tools

V10 = sorted((Path(__file__).parent / "v10").glob("*.yaml"))
V10 += [Path(__file__).parents[1] / "playbooks" / name for name in ("v10_surface.yaml", "v10_results.yaml")]


@pytest.mark.parametrize("path", V10, ids=lambda path: path.stem)
def test_the_migrated_playbook_tells_the_same_story(path, api, tmp_path):
    text = path.read_text(encoding="utf-8")
    made = migrate(text, tools.specs())
    assert made.text != text

    async def story(playbook: str):
        async with await open_local(home=tmp_path / "home") as engine:
            payload = {"api_url": api.url, "url": api.url + "/ok"}
            result = await engine.run(playbook, payload, timeout=60)
            return result, await engine.orchestrator.events(result.execution_id)

    (one, one_events), (other, other_events) = asyncio.run(story(text)), asyncio.run(story(made.text))
    assert other.status == one.status
    assert other.output == one.output

    def reported(events):
        return Counter(
            (
                each.body.NAME,
                getattr(each.body, "step", None),
                getattr(each.body, "task", None),
                getattr(each.body, "do", None),
            )
            for each in events
            if each.body.NAME != "ctx.patched"  # what travelled with the token is now in ctx
        )

    assert reported(other_events) == reported(one_events)
    assert reported(one_events)
