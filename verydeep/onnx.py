"""A network as an ONNX file, for programs without Python: made, checked against the network, and timed beside it.

`write_onnx` is for any module; `export` calls it for a run. Needs the extra `onnx`.
"""

import copy
import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.errors import RunError, UsageError, described
from verydeep.files import write_whole
from verydeep.nn.mode import evaluating
from verydeep.training.step import logits_of

OPSET = 18  # what the exporter itself writes; later ones are converted from it
TOLERANCE = 1e-4
CHECKED_BATCHES = (1, 2, 7)
MAX_BYTES = 2**31 - 1  # of one protobuf message
INPUT, OUTPUT = "images", "logits"


@dataclass(frozen=True)
class OnnxFile:
    """What was written.

    Args:    path: the file
             opset: version of its operators
             bytes: its size
             seconds: that making it took
             difference: largest absolute difference between its logits and the network's in eval mode, over the
                 batches of `CHECKED_BATCHES`, divided by the largest logit where that is above 1
    """

    path: Path
    opset: int
    bytes: int
    seconds: float
    difference: float


@torch.no_grad()
def write_onnx(
    model: nn.Module,
    images: Tensor,
    path: str | Path,
    *,
    expected: nn.Module | None = None,
    opset: int = OPSET,
    metadata: Mapping[str, str] | None = None,
) -> OnnxFile:
    """Write a module in eval mode as one ONNX file for any batch size, once onnxruntime has given the same logits.

    The same: within 1e-4; or, where the module itself is further than 1e-5 from its own computation in float64, as a
    thousand untrained layers are, within ten times that.

    Input `images`, (N, C, H, W) as the module takes them; output `logits`, (N, num_classes).

    Args:    model: on the CPU; its modes are put back
             images: (N, C, H, W), N at least 1
             expected: the module whose logits the file must give, of which `model` is the folded one; default: `model`
             opset: at least 18
             metadata: kept in the file
    Raises:  UsageError: if the extra `onnx` is not installed, or opset is not one that it knows.
             RunError: if the module cannot be exported, its file computes something else, or cannot be written.
    """
    known = _needed("onnx").defs.onnx_opset_version()
    if not OPSET <= opset <= known:
        raise UsageError(f"opset {opset}: must be {OPSET} to {known}")
    start = time.perf_counter()
    expected = expected or model
    with evaluating(model), evaluating(expected):
        content = _exported(model, images, opset, metadata or {})
        seconds = time.perf_counter() - start
        difference = _difference(runner(content), expected, images)
        allowed = TOLERANCE if difference <= TOLERANCE else max(TOLERANCE, 10 * _rounding(expected, images))
    if not difference <= allowed:
        raise RunError(
            f"onnx {path}: onnxruntime's logits differ from the network's by {difference:.1e}, more than "
            f"{allowed:.0e}; not written"
        )
    write_whole(Path(path), content)
    return OnnxFile(Path(path), opset, len(content), seconds, difference)


def runner(source: str | Path | bytes) -> Callable[[Tensor], Tensor]:
    """An ONNX file, or its content, as a function of images, computed by onnxruntime on as many threads as torch's."""
    onnxruntime = _needed("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors alone
    content = source if isinstance(source, bytes) else Path(source).read_bytes()  # its path may be no UTF-8
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.contiguous().numpy()})[0])


@torch.no_grad()
def images_per_second(
    sides: Mapping[str, Callable[[Tensor], object]], images: Tensor, *, seconds: float = 2.0
) -> dict[str, float]:
    """Images that each side computes in a second: the median of calls made in turn, after one that is not counted.

    Args:    images: (N, C, H, W), the batch of a call; channels_last, as verydeep's data come
             seconds: for all sides together, at least one call of each
    """
    batch = images.contiguous(memory_format=torch.channels_last)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side(batch)
    end = time.perf_counter() + seconds
    while True:
        for name, side in sides.items():
            start = time.perf_counter()
            side(batch)
            taken[name].append(time.perf_counter() - start)
        if time.perf_counter() >= end:
            return {name: len(images) / statistics.median(values) for name, values in taken.items()}


class _Logits(nn.Module):
    """A module whose output holds its logits, giving them alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return logits_of(self.model(images))


def _exported(model: nn.Module, images: Tensor, opset: int, metadata: Mapping[str, str]) -> bytes:
    _needed("onnxscript")
    giving_logits = model if isinstance(model(images[:1]), Tensor) else _Logits(model).eval()
    # the size of a batch of 1 would be taken for a constant
    batch = torch.cat([images, images]) if len(images) == 1 else images
    try:
        program: Any = torch.onnx.export(
            giving_logits,
            (batch,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=[INPUT],
            output_names=[OUTPUT],
            opset_version=opset,
            external_data=False,
            verbose=False,
        )
        proto = program.model_proto
    except Exception as error:  # whatever a user's forward raises on symbols, and the exporter on operators
        raise RunError(f"model {type(model).__name__}: cannot be exported to ONNX ({described(error)})") from error
    _needed("onnx").helper.set_model_props(proto, dict(metadata))
    if proto.ByteSize() > MAX_BYTES:
        raise RunError(f"onnx: the network takes {proto.ByteSize():,} bytes; a file of one piece holds {MAX_BYTES:,}")
    return proto.SerializeToString()


def _rounding(model: nn.Module, images: Tensor) -> float:
    """How far the module in float32 is from itself in float64."""
    precise = copy.deepcopy(model).double()
    return _difference(lambda batch: logits_of(precise(batch.double())), model, images)


def _difference(compute: Callable[[Tensor], Tensor], model: nn.Module, images: Tensor) -> float:
    """Largest difference of two computations of logits over `CHECKED_BATCHES`; see `OnnxFile`."""
    worst = 0.0
    generator = torch.Generator().manual_seed(0)
    for size in CHECKED_BATCHES:
        batch = torch.randn(size, *images.shape[1:], generator=generator)
        expected = logits_of(model(batch))
        difference = (compute(batch) - expected).abs().max() / expected.abs().max().clamp(min=1)
        worst = max(worst, difference.item()) if difference.isfinite() else float("nan")
    return worst


def _needed(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f"format onnx: {module} is not installed; pip install 'verydeep[onnx]'") from None
