"""The time of a training step against depth: it should be a straight line.

    python benchmarks/depth.py [--rounds 5] [--batch-size 64]      writes results/depth.json

preact_resnet of 110, 218, 434 and 866 layers (basic units) on 32x32 images, the steps of all depths in turn. The ratio
is the time over that of 110 layers, divided by the ratio of the units: 1 is linear. CPU, float32.
"""

import argparse
import sys

import torch
from timing import alternate, our_step, write

import verydeep

DEPTHS = (110, 218, 434, 866)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    images = torch.randn(arguments.batch_size, 3, 32, 32)
    labels = torch.randint(0, 10, (arguments.batch_size,))
    models = {depth: verydeep.create_model(f"preact_resnet{depth}_cifar") for depth in DEPTHS}
    sides = {str(depth): our_step(model, images, labels) for depth, model in models.items()}
    seconds = {name: sorted(values) for name, values in alternate(sides, rounds=arguments.rounds).items()}
    medians = {name: values[len(values) // 2] for name, values in seconds.items()}
    first = str(DEPTHS[0])
    results = {
        name: {
            "median_seconds": median,
            "over_linear": median / medians[first] / ((int(name) - 2) / (DEPTHS[0] - 2)),
        }
        for name, median in medians.items()
    }
    write("depth.json", command=f"python benchmarks/depth.py {' '.join(sys.argv[1:])}".strip(), results=results)


if __name__ == "__main__":
    main()
