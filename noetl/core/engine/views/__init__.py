"""Explanations and trees derived from engine state."""
