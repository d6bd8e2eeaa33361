"""Connections to the outside that several tools and back ends share."""
