"""Both planes in one process, for `noetl run` and for the tests."""
