"""Routes of tokens and sessions."""
