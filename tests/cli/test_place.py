"""Where verbs look and act when nobody says so."""

import os

from noetl.cli.target import Target
from noetl.runtime.process_table import ProcessTable
from noetl.settings import load


def test_verbs_mean_the_cluster_of_this_home_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    monkeypatch.delenv("NOETL_SERVER_URL", raising=False)
    settings = load({}).settings
    assert not Target().means_server(settings)
    fleet = ProcessTable(tmp_path)
    fleet.record("cluster-postgres", os.getpid(), url="127.0.0.1:5432")
    assert not Target().means_server(settings)
    fleet.record("cluster-server-1", os.getpid(), url="http://127.0.0.1:1")
    fleet.record("cluster-server-2", os.getpid(), url="http://127.0.0.1:2")
    assert Target().means_server(settings)
    assert not Target(store="memory:").means_server(settings)
    with Target(token="t").client(settings) as client:
        assert client.url == "http://127.0.0.1:1"


def test_a_server_on_this_homes_own_store_needs_no_asking(tmp_path, monkeypatch):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    monkeypatch.delenv("NOETL_SERVER_URL", raising=False)
    ProcessTable(tmp_path).record("server", os.getpid(), url="http://127.0.0.1:1")
    assert not Target().means_server(load({}).settings)
