"""The target of a command without options."""

import os

from noetl.cli.target import Target
from noetl.runtime.process_table import ProcessTable
from noetl.settings import load


def test_the_target_is_the_cluster_of_this_home_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    monkeypatch.delenv("NOETL_SERVER_URL", raising=False)
    settings = load({}).settings
    assert not Target().is_remote(settings)
    fleet = ProcessTable(tmp_path)
    fleet.record("cluster-postgres", os.getpid(), url="127.0.0.1:5432")
    assert not Target().is_remote(settings)
    fleet.record("cluster-server-1", os.getpid(), url="http://127.0.0.1:1")
    fleet.record("cluster-server-2", os.getpid(), url="http://127.0.0.1:2")
    assert Target().is_remote(settings)
    assert not Target(store="memory:").is_remote(settings)
    with Target(token="t").client(settings) as client:
        assert client.url == "http://127.0.0.1:1"


def test_a_server_on_the_store_of_this_home_does_not_change_the_target(tmp_path, monkeypatch):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    monkeypatch.delenv("NOETL_SERVER_URL", raising=False)
    ProcessTable(tmp_path).record("server", os.getpid(), url="http://127.0.0.1:1")
    assert not Target().is_remote(load({}).settings)
