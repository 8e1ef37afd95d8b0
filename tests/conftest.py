"""Shared fixtures. Being here also puts this folder on the path: `from fakes import ...`."""
