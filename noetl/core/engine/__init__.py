"""What happens next between steps: the server's half."""
