"""Commands that inspect and control executions."""
