"""The keys of limits and the secrets that a step declares: names in parameters and templates of its tasks and blocks."""

from __future__ import annotations

import pytest
from engine_harness import playbook
from msgspec import structs

from noetl.core.engine.concurrency_keys import concurrency_keys_of
from noetl.core.engine.declared_secrets import ANY, declared_secrets

BOOK = """
keychain:
  - {name: token, kind: credential, credential: shared}
  - {name: other, kind: credential, credential: "{{ workload.name }}"}
workload: {name: x}
workbook:
  inner: {tool: [{name: t, kind: postgres, input: {auth: from_block}}, {name: again, kind: workbook, input: {block: inner}}]}
workflow:
  - {step: plain, tool: {kind: noop, text: auth}}
  - {step: named, spec: {pool: gpu}, tool: {kind: postgres, input: {auth: pg_main}}}
  - {step: template, tool: {kind: http, input: {headers: [{a: "{{ keychain.token.value }}"}, {b: "{{ keychain.other }}"}]}}}
  - {step: text, tool: {kind: http, input: {body: "keychain.token {{ workload.name }}"}}}
  - {step: whole, tool: {kind: http, input: {body: "{{ keychain }}"}}}
  - {step: computed, tool: {kind: postgres, input: {auth: "{{ workload.name }}"}}}
  - {step: block, tool: {kind: workbook, input: {block: inner}}}
  - {step: any_block, tool: {kind: workbook, input: {block: "{{ workload.name }}"}}}
"""
FOUND = {
    "plain": (("pool default",), set()),
    "named": (("pool gpu", "credential pg_main"), {"pg_main"}),
    "template": (("pool default", "credential other", "credential shared"), {"token", "other"}),
    "text": (("pool default",), set()),
    "whole": (("pool default",), {ANY}),
    "computed": (("pool default",), {ANY}),
    "block": (("pool default", "credential from_block"), {"from_block"}),
    "any_block": (("pool default",), {ANY}),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_names_of_a_step(name):
    book = playbook(BOOK)
    keys, secrets = FOUND[name]
    assert concurrency_keys_of(book, book.step(name)) == keys
    assert secrets <= declared_secrets(book, book.step(name))
    assert (ANY in declared_secrets(book, book.step(name))) == (ANY in secrets)


def test_code_that_is_not_a_template_names_nothing():
    book = playbook(BOOK)
    plain = book.step("plain")
    task = structs.replace(plain.tasks[0], input={"code": "result = '{{ keychain.token }} {% if %}'"})
    step = structs.replace(plain, tasks=(task,))
    assert concurrency_keys_of(book, step) == ("pool default",)
    assert declared_secrets(book, step) == frozenset()
