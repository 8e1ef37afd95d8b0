"""Replay published numbers (vector files) against our functions."""

from __future__ import annotations

import argparse

from turncredit.conformance.replay import replay

HELP = "replay published numbers against our functions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The directory to replay."""
    parser.add_argument("directory", help="where the vector files (*.json) lie")


def run(args: argparse.Namespace) -> int:
    """Print a row per method and `N passed, M failed`; 1 when one failed or none was checked."""
    report = replay(args.directory)
    print(report.text())
    return int(report.failed > 0 or report.passed == 0)
