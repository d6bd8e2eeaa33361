"""Client connections to external systems, shared by tools, storage and secrets."""
