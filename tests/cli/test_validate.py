"""`noetl validate`: all problems of all files, in four formats."""

from __future__ import annotations

import json
import subprocess

GOOD = "workflow:\n  - step: start\n    tool: {kind: noop}\n"
BAD = "workflow:\n  - step: start\n    tool: {kind: noop}\n    next: {arcs: [{step: nowhere}]}\n"


def test_a_good_playbook_has_no_problems(noetl, playbook):
    answer = noetl("validate", playbook(GOOD))
    assert (answer.code, answer.out) == (0, "")
    assert "no problems" in answer.err
    assert noetl("validate", playbook(GOOD), "--quiet").err == ""


def test_an_invalid_playbook_exits_with_3_and_prints_position_reason_and_code(noetl, playbook):
    answer = noetl("validate", playbook(BAD))
    assert answer.code == 3
    assert answer.out.startswith("sample.yaml:7:26: error: ")
    assert "[unknown-step]" in answer.out


def test_lint_is_another_name_for_it(noetl, playbook):
    assert noetl("lint", playbook(BAD)).out == noetl("validate", playbook(BAD)).out


def test_json_is_a_list_of_findings_of_all_files(noetl, playbook):
    files = playbook(BAD, "one"), playbook(GOOD, "two"), playbook(BAD, "three")
    answer = noetl("validate", "--format", "json", *files)
    assert answer.code == 3
    assert [finding["file"] for finding in answer.json] == ["one.yaml", "three.yaml"]
    for finding in answer.json:
        assert {"file", "line", "column", "code", "severity", "message", "hint"} <= set(finding)
        assert (finding["line"], finding["column"], finding["severity"]) == (7, 26, "error")
    assert noetl("validate", "--format", "json", files[1]).json == []


def test_github_and_sarif_are_output_formats(noetl, playbook):
    answer = noetl("validate", "--format", "github", playbook(BAD))
    assert answer.code == 3
    assert answer.out.startswith("::error file=sample.yaml,line=7,")
    log = noetl("validate", "--format", "sarif", playbook(BAD)).json
    assert log["version"] == "2.1.0"
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 7


def test_a_file_that_cannot_be_read_does_not_hide_the_others(noetl, playbook):
    answer = noetl("validate", "--format", "json", "missing.yaml", playbook(BAD))
    assert answer.code == 2
    assert [finding["file"] for finding in answer.json] == ["sample.yaml"]
    assert answer.err.splitlines()[0].startswith("error: missing.yaml: no such file")


def test_a_misspelt_name_is_suggested(noetl, playbook):
    playbook(GOOD, "report")
    assert "did you mean report.yaml?" in noetl("validate", "reprot.yaml").err


def test_strict_reports_v10_spellings_as_errors(noetl, playbook):
    old = GOOD + "    next: {arcs: [{step: end, args: {a: 1}}]}\n  - step: end\n    tool: {kind: noop}\n"
    assert noetl("validate", playbook(old)).code == 0
    assert "warning" in noetl("validate", playbook(old)).out
    assert noetl("validate", "--strict", playbook(old)).code == 3


def test_a_playbook_is_read_from_stdin(start, playbook, folder):
    process = start("validate", "-", "--format", "json", stdin=subprocess.PIPE)
    out, _ = process.communicate((folder / playbook(BAD)).read_text(), timeout=30)
    assert process.returncode == 3
    assert json.loads(out)[0]["file"] == "<stdin>"


def test_no_file_is_a_usage_error(noetl):
    assert noetl("validate").code == 2
    assert noetl("validate", "--format", "xml", "x.yaml").code == 2


RESOURCES = """\
apiVersion: noetl.io/v2
kind: ObjectTrigger
metadata: {name: inbox}
spec:
  path: triggers/load
  url: var/in
---
apiVersion: noetl.io/v2
kind: Schedul
metadata: {name: a}
spec: {path: x, cron: "* * * * *"}
---
apiVersion: noetl.io/v2
kind: Schedule
metadata: {nam: b}
spec:
  path: x
  crn: "* * * * *"
---
kind: Notification
metadata: {name: n}
spec:
  to: {kind: http, url: "https://hooks.example.com/x"}
  on: [faild]
---
apiVersion: noetl.io/v2
kind: Schedule
metadata: {name: c}
spec:
  cron: "* * * * *"
  path: x
  tz: Europe/Berlim
---
apiVersion: noetl.io/v2
kind: Limit
metadata: {name: c}
spec: [1]
"""


def test_all_problems_of_resource_files_are_reported_with_their_lines(noetl, folder):
    (folder / "bad.resource.yaml").write_text(RESOURCES)
    answer = noetl("validate", "bad.resource.yaml", "--format", "json")
    assert answer.code == 3
    assert [(one["line"], one["code"]) for one in answer.json] == [
        (6, "wrong-value"),  # not an absolute path
        (9, "wrong-value"),  # did you mean Schedule?
        (15, "missing-key"),
        (17, "missing-key"),  # cron
        (18, "unknown-key"),
        (20, "missing-key"),  # apiVersion
        (24, "wrong-value"),
        (32, "wrong-value"),
        (37, "wrong-type"),
    ]
    assert '"Schedule"' in answer.json[1]["hint"]
    (folder / "broken.resource.yaml").write_text("kind: [")
    assert noetl("validate", "broken.resource.yaml", "--format", "json").json[0]["code"] == "yaml-syntax"


def test_a_folder_is_validated_with_its_resources(noetl, folder):
    (folder / "project").mkdir()
    (folder / "project" / "noetl.toml").write_text('[project]\nname = "p"\n')
    text = RESOURCES.split("---")[4].replace("Berlim", "Berlin")
    (folder / "project" / "c.resource.yaml").write_text(text)
    answer = noetl("validate", "project")
    assert (answer.code, "no problems" in answer.err) == (0, True)
    (folder / "project" / "c.resource.yaml").write_text(text.replace("Berlin", "Berlim"))
    assert noetl("validate", "project").code == 3
