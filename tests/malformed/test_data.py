"""Malformed images, label files and parquet: for predict, and for training."""

import io
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.folders import noise, png, write_folder, write_parquet
from tests.malformed.refusal import outcome, refused, refused_or_taken

TRAIN = [
    "train", "--model", "preact_resnet8_cifar", "--width", "4", "--steps", "1",
    "--batch-size", "4", "--workers", "0", "--out", "new", "--image-size", "8",
]  # fmt: skip

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")


def encoded(format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    noise(0, (32, 32)).save(buffer, format, **options)
    return buffer.getvalue()


def png_header(width: int, height: int, *, bits: int = 8, color: int = 2) -> bytes:
    """A PNG file that declares a size and holds ten bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(10))) + chunk(b"IEND", b"")


CUTS = {"a tenth": 0.1, "a third": 0.34, "half": 0.5, "nine tenths": 0.9}
IMAGES: dict[str, bytes] = {
    **{
        f"{share} of a {format}": content[: int(len(content) * part)]
        for format in FORMATS
        for content in [encoded(format)]
        for share, part in CUTS.items()
        if (format, share) != ("GIF", "nine tenths")  # its decoder has all pixels by then
    },
    "empty": b"",
    "one byte": b"\xff",
    "zeros": bytes(4096),
    "text": b"not an image",
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "pdf": b"%PDF-1.4\n%%EOF\n",
    "a program of Ghostscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    b"(executed) (w) file closefile showpage\n",
    "a zip": b"PK\x03\x04" + bytes(100),
    "a billion pixels": png_header(60_000, 60_000),
    "the most that PNG declares": png_header(2**31 - 1, 2**31 - 1),
    "a line of two billion pixels": png_header(2**31 - 1, 1),
    "no pixels": png_header(0, 0),
    "no width": png_header(0, 8),
    "seven bits": png_header(8, 8, bits=7),
    "a colour that there is not": png_header(8, 8, color=5),
    "fewer pixels than declared": png_header(100, 100),
    "ppm of a quintillion": b"P6 9999999999 9999999999 255\n",
    "ppm of a negative size": b"P6 -1 -1 255\n",
    "ppm of letters": b"P6 x y 255\n",
    "gif without a picture": b"GIF89a\x08\x00\x08\x00\x00\x00\x00;",
    "tiff without a directory": b"II*\x00\xff\xff\xff\xff",
    "tiff whose directory is itself": b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00",
    "bmp of a negative size": b"BM" + struct.pack("<IIIIiiHH", 60, 0, 54, 40, -8, -8, 1, 24) + bytes(40),
    "jpeg without a scan": b"\xff\xd8\xff\xd9",
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_cannot_be_read_is_named(place, name):
    (place / "it's 坏.png").write_bytes(IMAGES[name])
    refused(["predict", "run", "it's 坏.png"], "1 of 1 images", "it's 坏.png", code=1)
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", IMAGES)
def test_training_names_it_too_or_leaves_it_out(place, name):
    write_folder(place / "photos", {"a": 6, "b": 6}, size=(8, 8))
    (place / "photos" / "a" / "bad.jpg").write_bytes(IMAGES[name])
    argv = [*TRAIN, "--data", "folder:photos", "--image-size", "8"]
    refused(argv, "photos/a/bad.jpg", code=1)
    assert outcome([*argv, "--bad-images", "skip"])[0] == 0


def test_decoding_in_workers_names_it_too(place):
    write_folder(place / "photos", {"a": 4, "b": 4})
    (place / "photos" / "a" / "bad.png").write_bytes(b"")
    argv = [*TRAIN, "--data", "folder:photos", "--mean", "0.5,0.5,0.5", "--std", "1,1,1"]
    argv += ["--image-size", "72", "--workers", "1", "--steps", "4"]  # beyond what is kept in memory; the last wins
    code, err = outcome(argv)
    assert code == 1 and err.endswith("photos/a/bad.png: cannot be read: empty file\n")


def test_what_is_no_file_is_refused(place):
    os.mkfifo(place / "pipe.png")
    refused(["predict", "run", "pipe.png"], "pipe.png", code=1)
    (place / "loop.png").symlink_to("loop.png")
    refused(["predict", "run", "loop.png"], "loop.png")
    (place / "gone.png").symlink_to("nowhere")
    refused(["predict", "run", "gone.png"], "gone.png")
    (place / "folder.png").mkdir()
    refused(["predict", "run", "folder.png"], "folder.png", "no images in it", code=2)


def test_only_the_damaged_of_many_are_named_and_the_rest_is_written(place):
    for number in range(3):
        shutil.copy("image.png", f"folder/{number}.png")
    Path("folder/1.png").write_bytes(b"")
    code, err = outcome(["predict", "run", "folder", "--out", "all.csv"])
    assert code == 1 and err.endswith("1 of 3 images could not be read: folder/1.png\n")
    lines = Path("all.csv").read_text().splitlines()
    assert len(lines) == 4 and "empty file" in lines[2]


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_any_bytes_are_read_or_refused(place, draw):
    content = bytearray(ORIGINALS[draw.draw(st.sampled_from(FORMATS))])
    for _ in range(draw.draw(st.integers(1, 6))):
        where = draw.draw(st.integers(0, 63) | st.integers(0, len(content) - 1))
        content[where % len(content)] = draw.draw(st.integers(0, 255))
    Path("any.png").write_bytes(content)
    refused_or_taken(["predict", "run", "any.png"])


ORIGINALS = {format: encoded(format) for format in FORMATS}

# label files

CSV: dict[str | bytes, str] = {
    "": "no column 'path'",
    "\n\n": "no column 'path'",
    "path\nphotos/a/0.png\n": "no column 'label'",
    "path;label\nphotos/a/0.png;a\n": "no column 'path'",
    "path,label\n": "no lines",
    "path,label\nphotos/a/0.png\n": "line 2",
    "path,label\n,a\n": "line 2",
    "path,label\nphotos/a/0.png,\n": "line 2",
    "path,label\nphotos/a/0.png,a\n,\n": "line 3",
    'path,label\n"photos/a/0.png,a\n': "line 2",
    "path,label\nphotos/a/0.png,a\x00\n": "line 2",
    "path,label,split\nphotos/a/0.png,a,trian\n": "split 'trian'",
    "path,label,split\nphotos/a/0.png,a,\n": "split ''",
    "path,label,split\nphotos/a/0.png,a,test\n": "no training set",
    "path,label,split\nphotos/a/0.png,a,train\nphotos/b/0.png,b,test\n": "label 'b'",
    "path,label\nphotos/a/0.png,a\n": "1 training images",
    "path,label\nabsent.png,a\nabsent.png,a\n": "absent.png",
    "path,label\nphotos,a\nphotos,a\n": "photos",
    "path,label\nhttp://x/y.png,a\nhttp://x/y.png,a\n": "y.png",
    f"path,label\n{'x' * 200_000},a\n": "field",
    f"path,label\n{'x' * 5000},a\n{'y' * 5000},a\n": "ame too long",
    b"\xff\xfep\x00a\x00": "UTF-8",
    b"path,label\n\xff.png,a\n": "UTF-8",
    b"\x89PNG\r\n\x1a\n": "UTF-8",
}


@pytest.mark.parametrize("content", CSV, ids=lambda content: repr(content)[:40])
def test_a_malformed_label_file_is_refused(place, content):
    write_folder(place / "photos", {"a": 2, "b": 2}, size=(8, 8))
    (place / "labels.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    refused([*TRAIN, "--data", "csv:labels.csv"], CSV[content])


# parquet


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def changed(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda path: pq.write_table(change(pq.read_table(path)), path)


def labelled(labels: list[Any]) -> Callable[[Path], None]:
    return changed(lambda table: table.set_column(1, "label", pa.array(labels)))


def pictured(pictures: list[Any]) -> Callable[[Path], None]:
    return changed(lambda table: table.set_column(0, "picture", pa.array(pictures)))


def declared(text: bytes) -> Callable[[Path], None]:
    return changed(lambda table: table.replace_schema_metadata({b"huggingface": text}))


def beside(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """Another file, which differs from the first."""

    def write(path: Path) -> None:
        other = path.with_name("train-1.parquet")
        shutil.copy(path, other)
        change(other)

    return write


def names_of(value: str) -> bytes:
    return f'{{"info": {{"features": {{"label": {{"names": {value}}}}}}}}}'.encode()


PARQUET: dict[str, Callable[[Path], Any]] = {
    "empty": damaged(lambda data: b""),
    "text": damaged(lambda data: b"not parquet"),
    "half": damaged(lambda data: data[: len(data) // 2]),
    "without its end": damaged(lambda data: data[:-1]),
    "without its beginning": damaged(lambda data: data[100:]),
    "a long footer": damaged(lambda data: data[:-8] + b"\xff\xff\xff\x7f" + data[-4:]),
    "a footer of noise": damaged(lambda data: data[:-408] + bytes(range(200)) * 2 + data[-8:]),
    "pages of noise": damaged(lambda data: data[:4] + b"\xff" * 4000 + data[4004:]),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "no rows": changed(lambda table: table.slice(0, 0)),
    "no image column": changed(lambda table: table.drop_columns(["picture"])),
    "no label column": changed(lambda table: table.drop_columns(["label"])),
    "labels that are text": labelled(list("abcdefgh")),
    "labels that are fractions": labelled([0.5] * 8),
    "labels that are lists": labelled([[0]] * 8),
    "no labels": labelled([None] * 8),
    "a label missing": labelled([0, 1, 0, 1, 0, 1, 0, None]),
    "a negative label": labelled([0, 1, 0, 1, 0, 1, 0, -1]),
    "a label of a trillion": labelled([0, 1, 0, 1, 0, 1, 0, 10**12]),
    "images that are numbers": pictured([{"bytes": 3, "path": "x"}] * 8),
    "images that are lists": pictured([{"bytes": [1], "path": "x"}] * 8),
    "images that are paths": pictured([{"bytes": "image.png", "path": "x"}] * 8),  # nothing outside is read
    "images that are text": pictured([{"bytes": b"x", "path": "x"}] * 8),
    "images that are empty": pictured([{"bytes": b"", "path": None}] * 8),
    "images that are missing": pictured([{"bytes": None, "path": "x"}] * 7 + [{"bytes": b"x", "path": "x"}]),
    "images without bytes": pictured([{"path": "image.png"}] * 8),
    "a bomb as image": pictured([{"bytes": png_header(60_000, 60_000), "path": "x"}] * 8),
    "metadata that are no JSON": declared(b"{"),
    "metadata of another encoding": declared(b"\xff"),
    "metadata nested too deep": declared(b"[" * 100_000),
    "classes that are text": declared(names_of('"ab"')),
    "classes that are numbers": declared(names_of("[1, 2]")),
    "classes that are null": declared(names_of("null")),
    "classes that are lists": declared(names_of("[[1], [2]]")),
    "fewer classes than labels": declared(names_of('["a"]')),
    "a second file without labels": beside(changed(lambda table: table.drop_columns(["label"]))),
    "a second file with text as labels": beside(labelled(list("abcdefgh"))),
    "a second file with other images": beside(pictured([{"bytes": pa.scalar(b"x", pa.large_binary())}] * 8)),
    "a second file that is damaged": beside(damaged(lambda data: data[:50])),
}


@pytest.mark.parametrize("name", PARQUET)
def test_malformed_parquet_is_refused(place, name):
    path = place / "hub" / "train-0.parquet"
    write_parquet(path, [png(noise(seed, (8, 8))) for seed in range(8)], [0, 1] * 4)
    PARQUET[name](path)
    refused([*TRAIN, "--data", "parquet:hub"], "hub")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_any_bytes_of_parquet_are_taken_or_refused(place, draw):
    path = place / "hub" / "train-0.parquet"
    write_parquet(path, [png(noise(seed, (8, 8))) for seed in range(8)], [0, 1] * 4)
    content = bytearray(path.read_bytes())
    for _ in range(draw.draw(st.integers(1, 6))):
        where = draw.draw(st.integers(0, len(content) - 1) | st.integers(len(content) - 1500, len(content) - 1))
        content[where % len(content)] = draw.draw(st.integers(0, 255))
    path.write_bytes(content)
    refused_or_taken(["evaluate", "run", "--data", "parquet:hub"])


INPUTS = [
    *(("image", name) for name in IMAGES),
    *(("folder", name) for name in IMAGES),
    *(("csv", content) for content in CSV),
    *(("parquet", name) for name in PARQUET),
]
