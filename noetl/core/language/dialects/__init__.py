"""The dialects of the language: canonical, v10, 2025-11."""
