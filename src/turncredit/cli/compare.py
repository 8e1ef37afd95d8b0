"""Compare evaluations of one panel: paired statistics against the first, and between all."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from turncredit.core.errors import MissingExtra
from turncredit.proof.compare import compare_files
from turncredit.report.figure import comparison_figure
from turncredit.report.table import comparison

HELP = "compare evaluations of one panel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("results", nargs="+", metavar="FILE", help="outputs of turncredit eval")
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="one a file [file names]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--figure", type=Path, metavar="PNG", help="also draw a figure")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap [0]")


def run(args: argparse.Namespace) -> int:
    """Print the comparison. Status 1 when a figure was asked for and could not be drawn."""
    result = compare_files(args.results, labels=args.labels, seed=args.seed)
    print(json.dumps(result.to_dict(), indent=2) if args.json else comparison(result))
    if args.figure is None:
        return 0
    try:
        path = comparison_figure(result, args.figure)
    except MissingExtra as error:
        print(f"turncredit: no figure: {error}", file=sys.stderr)
        return 1
    print(f"Figure: {path}", file=sys.stderr)
    return 0
