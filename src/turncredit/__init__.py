"""turncredit: critic-free, turn-level credit for LLM agents, and proof whether it helped."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("turncredit")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+source"
