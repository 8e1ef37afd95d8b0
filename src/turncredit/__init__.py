"""turncredit: critic-free, turn-level credit for LLM agents, and proof whether it helped."""

from importlib.metadata import version

__version__ = version("turncredit")
