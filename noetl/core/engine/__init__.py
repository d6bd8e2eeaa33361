"""The engine: decides what follows between steps, on the server."""
