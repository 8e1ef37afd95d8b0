"""Environments: text in, text out."""
