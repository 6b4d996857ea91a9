"""A run's network as a file for other programs."""

from pathlib import Path
from typing import Any

from verydeep.errors import UsageError, resolve_name
from verydeep.files import write_whole
from verydeep.saved import weights_file
from verydeep.weights import read_card

FORMATS = ("safetensors",)


def export_run(run: str | Path, *, format: str, out: str | Path, weights: str = "last") -> dict[str, Any]:
    """Write the network of a run: `safetensors` holds its weights, and its architecture and classes as metadata.

    Raises:  UsageError: if there is no finished run, or `out` exists.
             RunError: if the file cannot be written.
    """
    format = resolve_name("format", format, FORMATS)
    source, target = weights_file(run, weights), Path(out)
    if target.exists():
        raise UsageError(f"out {target}: exists; give another name")
    card = read_card(source)
    write_whole(target, source.read_bytes())
    return {"out": str(target), "format": format, "model": card.model, "bytes": target.stat().st_size}
