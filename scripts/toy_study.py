"""The toy study: every method, 30 seeds, with a right, a useless and a wrong hint.

    python scripts/toy_study.py              # print the tables (one or two minutes of one core)
    python scripts/toy_study.py --write      # and put them, with the figures, into docs/

The corridor, and what each method meets in it: `toy_corridor/`. In pages, only what stands between
marks is written. Equal seeds give equal files.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from toy_corridor.pages import write
from toy_corridor.study import SEEDS, UPDATES, study
from toy_corridor.tables import tables

from turncredit.core import registry

DOCS = Path(__file__).parents[1] / "docs"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--write", action="store_true", help="put tables and figures into --docs")
    parser.add_argument("--docs", type=Path, default=DOCS)
    args = parser.parse_args(argv)
    began = time.process_time()
    found = study(registry.names("method"), args.seeds, args.updates)
    print(f"{time.process_time() - began:.0f} s of CPU")
    print(tables(found))
    for path in write(found, args.docs) if args.write else ():
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
