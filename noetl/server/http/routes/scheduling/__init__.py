"""Routes of schedules, webhooks, other triggers, backfills and notifications."""
