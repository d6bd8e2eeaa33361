"""Commands that manage an installation: credentials, tokens, limits, schedules, webhooks, settings."""
