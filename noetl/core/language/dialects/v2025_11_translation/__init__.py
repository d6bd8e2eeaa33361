"""The surface of 2025-11 told in canonical words: trees in, trees out."""
