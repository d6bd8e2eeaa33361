"""The control-plane process: settings, back ends, orchestrator, API, listen."""
