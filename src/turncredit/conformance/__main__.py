"""`python -m turncredit.conformance DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from turncredit.conformance.replay import replay
from turncredit.core.errors import TurncreditError


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; 1: one failed or none was checked, 2: nothing to replay."""
    parser = argparse.ArgumentParser(prog="python -m turncredit.conformance", description=__doc__)
    parser.add_argument("directory", help="where the vector files (*.json) lie")
    try:
        report = replay(parser.parse_args(argv).directory)
    except TurncreditError as error:
        print(f"turncredit: {error}", file=sys.stderr)
        return 2
    print(report.text())
    return int(report.failed > 0 or report.passed == 0)


if __name__ == "__main__":
    sys.exit(main())
