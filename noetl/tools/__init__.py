"""Tool kinds, one package each; `registry` discovers them and the plug-ins of other distributions."""
