"""`noetl fmt` and `noetl migrate`: in place, from stdin, or with --check."""

from __future__ import annotations

from pathlib import Path

UNTIDY = "workflow:\n-   step: start   \n    tool:\n    - go: {kind: noop}\n"


def test_fmt_rewrites_in_place_once(noetl, playbook):
    file = playbook(UNTIDY)
    answer = noetl("fmt", file)
    assert (answer.code, answer.out) == (0, "")
    assert "formatted" in answer.err
    text = Path(file).read_text()
    assert text.endswith("workflow:\n  - step: start\n    tool:\n      - {name: go, kind: noop}\n")
    assert noetl("fmt", file).err == ""
    assert Path(file).read_text() == text


def test_check_names_unformatted_files_and_writes_nothing(noetl, playbook):
    file = playbook(UNTIDY)
    before = Path(file).read_bytes()
    answer = noetl("fmt", "--check", file)
    assert (answer.code, answer.out) == (1, f"{file}\n")
    assert Path(file).read_bytes() == before
    noetl("fmt", file)
    assert noetl("fmt", "--check", file).code == 0


def test_a_file_that_is_not_yaml_is_reported_and_unchanged(noetl, playbook):
    file = playbook("workflow: [1,\n")
    before = Path(file).read_bytes()
    answer = noetl("fmt", file)
    assert answer.code == 3
    assert "yaml-syntax" in answer.err
    assert Path(file).read_bytes() == before
    assert noetl("fmt", "nowhere.yaml").code == 2


V10 = "workflow:\n  - step: start\n    tool:\n      - go: {kind: noop}   # now\n"
CANONICAL = "workflow:\n  - step: start\n    tool:\n      - {name: go, kind: noop}   # now\n"


def test_migrate_prints_the_canonical_text_or_writes_it(noetl, playbook):
    file = playbook(V10)
    before = Path(file).read_text()
    answer = noetl("migrate", file)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == before.replace(V10, CANONICAL)
    diff = noetl("migrate", file, "--diff").out
    assert "-      - go: {kind: noop}   # now\n+      - {name: go, kind: noop}   # now\n" in diff
    assert Path(file).read_text() == before
    assert noetl("migrate", file, "--write").out == ""
    assert Path(file).read_text() == answer.out
    assert noetl("migrate", file, "--diff").out == ""


def test_marks_of_migrate_are_listed_with_their_lines_and_exit_code_1(noetl, playbook):
    text = "workflow:\n  - step: start\n    tool: {kind: noop}\n    input: {a: 1}\n    args: {a: 2}\n"
    answer = noetl("migrate", playbook(text))
    assert answer.code == 1
    assert "sample.yaml:8: " in answer.err
    assert "# noetl migrate: " in answer.out


def test_a_playbook_with_errors_is_not_migrated(noetl, playbook):
    answer = noetl("migrate", playbook("workflow:\n  - step: start\n    tool: {kind: nonesuch}\n"))
    assert (answer.code, answer.out) == (3, "")


def test_migrate_accepts_2025_11_text_without_the_legacy_option(noetl, playbook):
    file = playbook("workflow:\n  - step: start  # begin\n    result: x\n    tool: {kind: noop}\n")
    answer = noetl("migrate", file)
    assert answer.code == 0
    assert "  - step: start  # begin\n" in answer.out
    assert 'ctx.x: "{{ output.data }}"' in answer.out
    noetl("migrate", file, "--write")
    assert noetl("validate", "--strict", file).code == 0


ALIAS = "workflow:\n  - step: s\n    tool:\n      - a: &t {kind: noop}\n      - b: *t   # the last line\n"


def test_written_text_parses_and_passes_the_check(noetl, playbook):
    file = playbook(ALIAS)
    assert noetl("migrate", file, "--write").code == 0
    assert "# the last line" in Path(file).read_text()
    assert noetl("validate", "--strict", file).code == 0
    assert noetl("fmt", "--check", file).code == 0
    text = Path(file).read_bytes()
    assert noetl("migrate", file, "--write").code == 0
    assert Path(file).read_bytes() == text


def test_a_file_that_cannot_be_migrated_stays_as_it_was(noetl, playbook, tmp_path):
    file = Path(playbook("? workflow\n: - step: s\n    args: {n: 1}\n    tool: {kind: noop}"))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n"))
    file.chmod(0o640)
    before = (file.read_bytes(), file.stat().st_mode, file.stat().st_ino)
    answer = noetl("migrate", str(file), "--write")
    assert answer.code == 1
    assert f"{file.name}:4: the file was not changed" in answer.err
    assert (file.read_bytes(), file.stat().st_mode, file.stat().st_ino) == before


def test_a_rewritten_file_keeps_its_line_ends_its_permissions_and_its_link(noetl, playbook, tmp_path):
    file = Path(playbook(V10)).resolve()
    file.write_bytes(file.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n"))
    file.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    assert noetl("migrate", str(link), "--write").code == 0
    content = file.read_bytes()
    assert b"name: go" in content
    assert content.count(b"\r\n") == content.count(b"\n") and content.endswith(b"\r\n")
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o640
    assert noetl("fmt", "--check", str(link)).code == 0
    assert not [each for each in file.parent.iterdir() if each.name.startswith(f".{file.name}")]


def test_a_second_document_is_an_error(noetl, playbook):
    file = playbook(V10 + "---\na: 1\n")
    before = Path(file).read_bytes()
    for command in (("fmt",), ("migrate", "--write")):
        answer = noetl(command[0], file, *command[1:])
        assert answer.code == 3 and "yaml-documents" in answer.err
    assert Path(file).read_bytes() == before
