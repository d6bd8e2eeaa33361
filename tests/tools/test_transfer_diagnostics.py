"""What the validator reports about the fields of transfers and objects, on their lines."""

from __future__ import annotations

from pathlib import Path

import noetl

HERE = Path(__file__).parent / "playbooks"


def problems(name: str) -> list[tuple[int, str, str]]:
    return [(each.line, each.severity, each.message) for each in noetl.validate((HERE / name).read_text())]


def test_correct_fields_have_no_diagnostics() -> None:
    assert problems("transfer_files.yaml") == []


def test_wrong_values_are_reported_where_they_are() -> None:
    found = problems("transfer_files_wrong.yaml")
    assert [(line, severity) for line, severity, _ in found] == [
        (9, "error"), (9, "error"), (11, "error"), (12, "error"), (12, "warning"), (13, "warning"), (14, "error"),
        (15, "error"), (16, "warning"), (18, "error"), (21, "error"),
    ]  # fmt: skip
    words = ["only_new", "lzma", "evolv", "discard_row", "tables", "schema", "partition_by", "upsert", "partition_by",
             '"to"', "rar"]  # fmt: skip
    assert all(word in message for word, (_, _, message) in zip(words, found, strict=True)), found


def test_names_of_types_are_checked() -> None:
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: example}
workload: {kind: date}
workflow:
  - step: load
    tool:
      kind: transfer
      source:
        kind: http
        url: https://example.org/orders
        types:
          id: BIGINT
          price: decimal(10, 2)
          tags: text[]
          moment: timestamp  with time zone
          other: "{{ workload.kind }}"
          total: decimal(50, 2)
          day: dat
          docs: json[]
      targets:
        - {kind: duckdb, file: shop.duckdb, table: orders}
"""
    found = [(each.line, each.code, each.message.partition(" of ")[0]) for each in noetl.validate(text)]
    assert found == [
        (19, "parameter-type", "`total`"),
        (20, "parameter-type", "`day`"),
        (21, "parameter-type", "`docs`"),
    ]


def test_keys_of_pages_and_retries_are_checked() -> None:
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: example}
workflow:
  - step: load
    tool:
      - kind: transfer
        source: {kind: http, url: "https://example.org/a", pages: link, retry: {attempts: 5, delay: 2}}
        targets: [{kind: file, path: a.csv}]
      - kind: transfer
        source: {kind: http, url: "https://example.org/b", pages: {param: page, sise: 3}}
        targets: [{kind: file, path: b.csv}]
      - kind: transfer
        source: {kind: http, url: "https://example.org/c", pages: {next: "{{ page.data.next }}"}, retry: 5}
        targets: [{kind: file, path: c.csv}]
      - kind: transfer
        source: {kind: http, url: "https://example.org/d", pages: {start: 1}}
        targets: [{kind: file, path: d.csv}]
"""
    found = [(each.line, each.code) for each in noetl.validate(text)]
    assert found == [(12, "unknown-parameter"), (15, "parameter-type"), (18, "missing-parameter")]


def test_expressions_of_partitions_are_checked() -> None:
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: example}
workload: {by: region}
workflow:
  - step: load
    tool:
      kind: transfer
      source: {kind: file, path: orders.csv}
      targets:
        - {kind: file, path: a, partition_by: ["date_trunc('DAY',  at) AS day", region, "{{ workload.by }}"]}
        - {kind: file, path: b, partition_by: "date_trunc('month', \\"Ordered at\\")"}
        - {kind: file, path: c, partition_by: [region, "date_trunc('minute', at)"]}
        - {kind: file, path: d, partition_by: "year(at)"}
"""
    assert [(each.line, each.code) for each in noetl.validate(text)] == [(14, "parameter-type"), (15, "parameter-type")]
