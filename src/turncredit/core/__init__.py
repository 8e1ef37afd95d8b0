"""Nouns and protocols. NumPy and the standard library only."""
