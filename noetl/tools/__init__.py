"""Tool kinds, one package each; `registry` finds them and the plug-ins of other distributions."""
