"""Small data sets on disk for the tests of loaders: image folders and parquet files."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def noise(seed: int, size: tuple[int, int] = (20, 20)) -> Image.Image:
    """A random RGB image, its size (width, height)."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def write_folder(folder: Path, counts: Mapping[str, int], *, size: tuple[int, int] = (20, 20)) -> Path:
    """So many PNG images in each class sub-folder."""
    for place, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            noise(1000 * place + number, size).save(folder / name / f"{number}.png")
    return folder


def png(image: Image.Image) -> bytes:
    """The bytes of a PNG file, without loss."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(
    path: Path,
    images: list[bytes],
    labels: list[int | None],
    *,
    classes: list[str] | None = None,
    label: str = "label",
    **columns: list,
) -> None:
    """One file of the hub's layout, in row groups of 4."""
    rows = [{"bytes": content, "path": f"{number}.png"} for number, content in enumerate(images)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"picture": pa.array(rows, kind), label: pa.array(labels, pa.int64()), **columns})
    if classes:
        features = {label: {"names": classes, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=4)
