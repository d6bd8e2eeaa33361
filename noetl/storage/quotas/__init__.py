"""Token buckets of quotas, one module per back end."""
