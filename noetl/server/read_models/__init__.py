"""Read models: views of an execution derived from its event log."""
