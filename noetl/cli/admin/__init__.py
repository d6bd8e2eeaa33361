"""Commands that manage an installation: credentials, tokens, limits, triggers, notifications, settings."""
