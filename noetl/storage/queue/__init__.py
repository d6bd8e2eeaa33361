"""Run queues, one module per back end."""
