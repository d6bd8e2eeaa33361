"""Event handlers of the engine: each decides what follows from one kind of event."""
