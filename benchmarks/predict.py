"""The forward pass of prediction: verydeep's, as built and folded, against torch-resnet's, and without fused kernels.

    python benchmarks/predict.py [--rounds 15]      writes results/predict.json

preact_resnet164 in eval mode without gradients, equal multiply-adds, batches of 64 and of 1. Folded is the module of
`fold_batch_norm`. CPU, float32; needs the extra `bench`.
"""

import argparse
import sys
from collections.abc import Callable

import torch
from step import with_head
from timing import alternate, compare, write
from torch_resnet import PreActResNet164

import verydeep
from verydeep.nn.fused import plain_operations


def measure(batch_size: int, *, rounds: int) -> dict[str, object]:
    images = torch.randn(batch_size, 3, 32, 32)
    channels_last = images.contiguous(memory_format=torch.channels_last)  # as verydeep's data come
    ours = verydeep.create_model("preact_resnet164_cifar", stride_on="3x3").eval()
    folded, other = verydeep.fold_batch_norm(ours), with_head(PreActResNet164()).eval()

    def plain() -> None:
        with plain_operations():
            ours(channels_last)

    sides: dict[str, Callable[[], object]] = {
        "verydeep": lambda: ours(channels_last),
        "verydeep folded": lambda: folded(channels_last),
        "verydeep without fused kernels": plain,
        "torch-resnet": lambda: other(images),
    }
    seconds = alternate(sides, rounds=rounds, warmup=5)
    pairs = [{name: seconds[name] for name in (ours, "torch-resnet")} for ours in ("verydeep", "verydeep folded")]
    ratios = {
        next(iter(pair)): compare(pair, ours=next(iter(pair)))["ratio_over_ours"]["torch-resnet"] for pair in pairs
    }
    return compare(seconds, ours="verydeep") | {"torch_resnet_over": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with torch.no_grad():
        results = {f"batch {size}": measure(size, rounds=rounds) for size in (64, 1)}
    write("predict.json", command=f"python benchmarks/predict.py {' '.join(sys.argv[1:])}".strip(), results=results)


if __name__ == "__main__":
    main()
