"""JSON Schemas of results and forms."""
