"""The data model: frozen data that all other packages share."""
