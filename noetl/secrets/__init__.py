"""The keychain: sources of secret values, and the encrypted credential store."""
