"""The keychain: where secret values come from and how they are stored."""
