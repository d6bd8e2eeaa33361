"""HTTP in, one orchestrator call out; one file per resource."""
