"""Servers for other programs on this machine: the language server of editors, and the tools of assistants."""
