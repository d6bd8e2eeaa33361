"""The `noetl` command."""
