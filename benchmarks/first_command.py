"""The README's first command, after installation: seconds of the whole process and test error, for several seeds.

    python benchmarks/first_command.py [--seeds 3]      writes results/first_command.json

Goals: at most 90 seconds on two cores, median test error at most 3 %.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import timed, write


def run(seed: int, directory: Path) -> dict[str, float]:
    """`verydeep train` on one seed, as a process of its own."""
    out = directory / f"seed{seed}"
    command = [sys.executable, "-m", "verydeep", "train", "--seed", str(seed), "--out", str(out)]
    seconds = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    result = json.loads((out / "result.json").read_text())
    kept = ("test_error_percent", "train_loss", "seconds", "peak_memory_bytes", "steps", "threads")
    return {"seed": seed, "process_seconds": seconds} | {name: result[name] for name in kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as directory:
        runs = [run(seed, Path(directory)) for seed in range(seeds)]
    medians = {name: statistics.median(one[name] for one in runs) for name in ("test_error_percent", "process_seconds")}
    command = f"python benchmarks/first_command.py --seeds {seeds}"
    write("first_command.json", command=command, results={"median": medians, "runs": runs})


if __name__ == "__main__":
    main()
