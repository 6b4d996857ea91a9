"""Prediction with batch norms folded, against the network as built, with onnxruntime's figure beside both.

    python benchmarks/fold.py [--rounds 15] [--only NAME]      writes results/fold.json

preact_resnet164_cifar at 32 x 32 and resnet50 at 224 x 224, in eval mode without gradients, with the statistics of
random images. A ratio of a side is how many times longer it takes than the folded network. onnxruntime runs the ONNX
file of the folded network on as many threads as torch. CPU, float32; needs the extra `onnx`.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from timing import alternate, compare, write

import verydeep
from verydeep.analysis.batch_norm import recalibrate
from verydeep.nn.fused import plain_operations
from verydeep.onnx import runner, write_onnx

NETWORKS = {"preact_resnet164_cifar": (32, (64, 1)), "resnet50": (224, (16, 1))}  # image size, batch sizes


def measure(name: str, *, rounds: int) -> dict[str, object]:
    size, batches = NETWORKS[name]
    model = verydeep.create_model(name)
    recalibrate(model, [torch.randn(8, 3, size, size)])
    folded = verydeep.fold_batch_norm(model)
    with tempfile.TemporaryDirectory() as folder:
        file = write_onnx(folded, torch.randn(1, 3, size, size), Path(folder) / "x.onnx", expected=model)
        onnxruntime = runner(file.path)

    def plain(images: torch.Tensor) -> None:
        with plain_operations():
            model(images)

    results: dict[str, object] = {"export_seconds": file.seconds, "difference": file.difference}
    for batch in batches:
        images = torch.randn(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
        sides: dict[str, Callable[[torch.Tensor], object]] = {
            "folded": folded,
            "verydeep": model,
            "without fused kernels": plain,
            "onnxruntime": onnxruntime,
        }
        calls: dict[str, Callable[[], object]] = {side: partial(run, images) for side, run in sides.items()}
        results[f"batch {batch}"] = compare(alternate(calls, rounds=rounds, warmup=2), ours="folded")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=NETWORKS)
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else list(NETWORKS)
    with torch.no_grad():
        results = {name: measure(name, rounds=arguments.rounds) for name in names}
    write("fold.json", command=f"python benchmarks/fold.py {' '.join(sys.argv[1:])}".strip(), results=results)


if __name__ == "__main__":
    main()
