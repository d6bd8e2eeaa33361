"""The 2025-11 dialect: its rejected keys, and its translation to the canonical dialect."""
