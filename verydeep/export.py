"""A run's network as a file for other programs."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verydeep.errors import RunError, UsageError, resolve_name
from verydeep.files import write_whole
from verydeep.fold.batch_norm import fold_batch_norm
from verydeep.onnx import OPSET, images_per_second, runner, write_onnx
from verydeep.saved import load_run, weights_file
from verydeep.versions import versions
from verydeep.weights import METADATA, read_card

FORMATS = ("safetensors", "onnx")
TIMED_BATCHES = (1, 64)


def export_run(
    run: str | Path,
    *,
    format: str,
    out: str | Path,
    weights: str = "last",
    fold: bool = False,
    opset: int | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """Write the network of a run as one file, with its card as metadata: what its classes and its images are.

    `safetensors` holds the weights. `onnx` holds the computation, for any batch size, from normalised images to logits;
    it is written once onnxruntime has given the logits of the network itself, and timed beside it.

    Args:    weights: see `weights_file`
             fold: of onnx, the network of `fold_batch_norm`
             opset: of onnx; default: 18
             model: FILE.py:FUNCTION, if the network is the user's own
    Raises:  UsageError: if there is no finished run, `out` exists, or an argument does not go with the format.
             RunError: if the network cannot be exported, or the file not be written.
    """
    format = resolve_name("format", format, FORMATS)
    source, target = weights_file(run, weights), Path(out)
    if target.exists():
        raise UsageError(f"out {target}: exists; give another name")
    if not target.parent.is_dir():
        raise RunError(f"out {target}: cannot be written (there is no folder {target.parent})")
    if format == "onnx":
        return _as_onnx(run, target, weights=weights, fold=fold, opset=OPSET if opset is None else opset, model=model)
    if fold:
        raise UsageError(
            "fold true: safetensors holds weights under the names that the network gives them, and a folded network "
            "has others; must be false, or --format onnx"
        )
    if opset is not None:
        raise UsageError(f"opset {opset}: is of the format onnx; must be left out")
    card = read_card(source)
    if card.spec is not None:
        load_run(run, device="cpu", weights=weights)  # what cannot be loaded is not handed on
    write_whole(target, source.read_bytes())
    return {"out": str(target), "format": format, "model": card.model, "bytes": target.stat().st_size}


def _as_onnx(
    run: str | Path, target: Path, *, weights: str, fold: bool, opset: int, model: str | None
) -> dict[str, Any]:
    saved = load_run(run, device="cpu", model=model, weights=weights)
    card, size = saved.card, saved.card.image_size
    network = fold_batch_norm(saved.model) if fold else saved.model
    card_text = json.dumps(dataclasses.asdict(card) | {"folded": fold, "versions": versions()})
    images = torch.randn(1, card.channels, size, size, generator=torch.Generator().manual_seed(0))
    file = write_onnx(network, images, target, expected=saved.model, opset=opset, metadata={METADATA: card_text})
    sides: dict[str, Callable[[Tensor], object]] = {"eager": saved.model, "onnxruntime": runner(target)}
    if fold:
        sides["eager_folded"] = network
    return {
        "out": str(target),
        "format": "onnx",
        "model": card.model,
        "bytes": file.bytes,
        "folded": fold,
        "opset": file.opset,
        "difference": file.difference,
        "export_seconds": file.seconds,
        "threads": torch.get_num_threads(),
    } | _speed(sides, images)


@torch.no_grad()
def _speed(sides: dict[str, Callable[[Tensor], object]], image: Tensor) -> dict[str, float]:
    """Images a second of each side, by batch size."""
    measured = {}
    for size in TIMED_BATCHES:
        for name, value in images_per_second(sides, image.expand(size, -1, -1, -1)).items():
            measured[f"{name}_batch_{size}_images_per_second"] = value
    return measured
