"""One seed of a table of He et al. 2016 at the small scale, in a new directory: seconds of the whole process.

    python benchmarks/reproduce.py --data parquet:DIR [table1 table2 table3]      writes results/reproduce.json

Goal: each below 30 minutes on two cores. Nothing else should run beside it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from timing import timed, write

TABLES = ("table1", "table2", "table3")
GOAL_SECONDS = 1_800


def run(table: str, data: str, out: Path) -> dict[str, Any]:
    """`verydeep reproduce` as a process of its own, which uses all cores."""
    command = [sys.executable, "-m", "verydeep", "reproduce", table, "--data", data, "--seeds", "1", "--out", str(out)]
    seconds = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    trainings = [json.loads(path.read_text())["seconds"] for path in out.glob("runs/*/*.json")]
    return {
        "seconds": seconds,
        "of_goal": seconds / GOAL_SECONDS,
        "trainings": len(trainings),
        "seconds_of_trainings": {"sum": sum(trainings), "longest": max(trainings)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument("--data", required=True)
    arguments = parser.parse_args()
    kind, _, place = arguments.data.partition(":")
    shown = f"{kind}:{Path(place).name}" if place else kind
    results: dict[str, Any] = {}
    for table in arguments.tables:
        with tempfile.TemporaryDirectory() as directory:
            results[table] = run(table, arguments.data, Path(directory))
        command = f"python benchmarks/reproduce.py --data {shown} {' '.join(results)}"
        write("reproduce.json", command=command, results=results)


if __name__ == "__main__":
    main()
