"""Event logs, one module per back end."""
