"""The language server: one module per group of features."""
