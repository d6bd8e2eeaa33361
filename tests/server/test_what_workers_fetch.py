"""What workers fetch (bundles, files, schemas), and warnings for what an installation does not have."""

from __future__ import annotations

import msgspec
import pytest

from noetl.core.model.bundle import Bundle, file_digest
from noetl.core.model.work import Claim
from noetl.errors import NotFound
from noetl.server.orchestrator.catalog import Source
from noetl.server.orchestrator.installation_checks import installation_findings
from noetl.storage.triggers.memory import MemoryTriggerStore
from tests.server.conftest import run

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\n"
NEEDS = (
    HEAD
    + """
workflow:
  - step: start
    spec: {pool: gpu}
    tool:
      - {name: t, kind: noop, output: {schema: orders/v1}}
"""
)


def test_a_bundle_and_its_files_are_found_by_their_digests():
    bundle = Bundle({"p.yaml": file_digest(b"text")})

    async def scenario(orchestrator):
        store = orchestrator.catalog.playbooks
        await store.save_bundle(bundle)
        await store.save_files({file_digest(b"text"): b"text", file_digest(b""): b""})
        assert msgspec.json.decode(await orchestrator.work.bundle(bundle.digest), type=Bundle) == bundle
        assert await orchestrator.work.bundle_file(file_digest(b"text")) == b"text"
        assert await orchestrator.work.bundle_file(file_digest(b"")) == b""
        with pytest.raises(NotFound, match=r"^there is no bundle 00$"):
            await orchestrator.work.bundle("00")
        with pytest.raises(NotFound, match=r"^there is no file 00$"):
            await orchestrator.work.bundle_file("00")

    run(scenario)


def test_a_schema_is_found_in_the_registry_of_the_installation():
    async def scenario(orchestrator):
        await orchestrator.schemas.register("orders", {"type": "object"})
        found = msgspec.json.decode(await orchestrator.work.schema("orders/v1"))
        assert (found["name"], found["version"], found["schema"]) == ("orders", 1, {"type": "object"})
        with pytest.raises(NotFound, match="has no version 2"):
            await orchestrator.work.schema("orders/v2")

    async def without(orchestrator):
        wanted = r"^this installation has no schema registry; 'orders' is unknown$"
        with pytest.raises(NotFound, match=wanted):
            await orchestrator.work.schema("orders")

    run(scenario, triggers=MemoryTriggerStore())
    run(without)


def test_a_playbook_that_names_what_is_missing_has_warnings_until_it_is_there():
    async def scenario(orchestrator):
        playbook = await orchestrator.catalog.compile(Source(NEEDS))
        found = await installation_findings(orchestrator, playbook)
        assert found == sorted(found) and {each.severity for each in found} == {"warning"}
        texts = " ".join(each.message for each in found)
        assert "orders" in texts and "gpu" in texts
        await orchestrator.work.claim(Claim("w", 1, "gpu"), wait=0)
        (left,) = await installation_findings(orchestrator, playbook)
        assert "orders" in left.message
        await orchestrator.schemas.register("orders", {"type": "object"})
        assert await installation_findings(orchestrator, playbook) == []

    run(scenario, triggers=MemoryTriggerStore())


def test_an_installation_without_a_registry_checks_the_rest():
    async def scenario(orchestrator):
        playbook = await orchestrator.catalog.compile(Source(NEEDS))
        (found,) = await installation_findings(orchestrator, playbook)
        assert "gpu" in found.message
        orchestrator.effects.enabled = False  # another process runs the workers
        assert await installation_findings(orchestrator, playbook) == []

    run(scenario)
