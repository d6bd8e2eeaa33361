"""The syntax tree and the readers of its parts."""
