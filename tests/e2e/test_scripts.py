"""`script: {uri, source}`: where the code of a task comes from."""

import asyncio
import http.server
import threading
from functools import partial
from pathlib import Path

import pytest

from noetl.embedded import open_local
from noetl.tools._common.scripts import ScriptUnavailable, _address

TEXT = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: test}}
workflow:
  - step: start
    input: {{a: 2}}
    tool: {{kind: {kind}, script: {script}}}
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    beside, working = tmp_path / "playbooks", tmp_path / "working"
    for folder in (beside, working):
        folder.mkdir()
    monkeypatch.chdir(working)
    return beside, working


def run_script(folder: Path, kind: str, script: str):
    file = folder / "playbook.yaml"
    file.write_text(TEXT.format(kind=kind, script=script))

    async def run():
        async with await open_local(store="memory:", home=folder / "home") as engine:
            return await engine.run(file, timeout=30)

    return asyncio.run(run())


def test_a_file_is_found_beside_the_playbook_then_in_the_working_folder(folders):
    beside, working = folders
    (working / "code.py").write_text("def main(a):\n    return ['working', a]\n")
    script = "{uri: code.py, source: {type: file}}"
    assert run_script(beside, "python", script).data == ["working", 2]
    (beside / "code.py").write_text("def main(a):\n    return ['beside', a]\n")
    assert run_script(beside, "python", script).data == ["beside", 2]


def test_the_code_of_a_file_reads_all_scopes(folders):
    beside, _ = folders
    (beside / "code.py").write_text("def main(context):\n    return context['first']['n']\n")
    file = beside / "playbook.yaml"
    file.write_text("""apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: test}
workflow:
  - step: first
    tool: {kind: python, code: "result = {'n': 7}"}
    next: {arcs: [{step: second}]}
  - step: second
    tool: {kind: python, script: {uri: code.py}}
""")

    async def run():
        async with await open_local(store="memory:", home=beside / "home") as engine:
            return await engine.run(file, timeout=30)

    assert asyncio.run(run()).data == 7


def test_a_missing_file_is_an_error_that_names_it(folders):
    result = run_script(folders[0], "python", "{uri: absent.py}")
    assert result.status == "failed" and "absent.py" in result.error["message"]


def test_inline_code_is_in_the_source(folders):
    assert run_script(folders[0], "python", '{source: {type: inline, code: "result = a + 1"}}').data == 3
    result = run_script(folders[0], "shell", '{source: {type: inline, code: "echo inline"}}')
    assert result.data["stdout"].strip() == "inline", result.error


@pytest.mark.parametrize(
    "script",
    ['{{uri: "{url}/code.py"}}', '{{uri: code.py, source: {{type: http, endpoint: "{url}"}}}}'],
)
def test_code_from_http(folders, tmp_path, script):
    (tmp_path / "code.py").write_text("result = a * 10\n")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        result = run_script(folders[0], "python", script.format(url=f"http://127.0.0.1:{server.server_port}"))
        server.shutdown()
        thread.join()
    assert result.data == 20, result.error


def test_objects_have_their_bucket_in_the_source_or_in_the_uri():
    assert _address("jobs/a.py", "gcs", {"bucket": "b"}) == "gs://b/jobs/a.py"
    assert _address("/jobs/a.py", "s3", {"bucket": "b"}) == "s3://b/jobs/a.py"
    assert _address("s3://b/a.py", "s3", {}) == "s3://b/a.py"
    with pytest.raises(ScriptUnavailable, match="bucket"):
        _address("a.py", "s3", {})
    with pytest.raises(ScriptUnavailable, match=r"`ftp`.*file, http, inline"):
        _address("a.py", "ftp", {})
    with pytest.raises(ScriptUnavailable, match="uri"):
        _address("", "file", {})
