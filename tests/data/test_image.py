"""Images of every mode, turned, damaged or strange; and the whole sample of real ones."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from verydeep.data import eval_image, read_image
from verydeep.data.image import to_rgb
from verydeep.errors import RunError

ORIENTATION = 0x0112
NORMAL = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def test_16_bit_gray_is_scaled_not_clipped() -> None:
    values = np.array([[0, 4660], [32768, 65535]], dtype=np.uint16)
    for mode_values in (values, values.astype(np.int32)):
        rgb = np.asarray(to_rgb(Image.fromarray(mode_values)))
        assert rgb[..., 0].tolist() == [[0, 18], [128, 255]]
        assert (rgb == rgb[..., :1]).all()
    png = read_image(encoded(Image.fromarray(values), "PNG"))
    assert np.asarray(png)[..., 1].tolist() == [[0, 18], [128, 255]]


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 77, (77, 77, 77)),
        ("LA", (77, 0), (77, 77, 77)),
        ("La", (77, 255), (77, 77, 77)),
        ("RGB", (1, 2, 3), (1, 2, 3)),
        ("RGBA", (1, 2, 3, 0), (1, 2, 3)),
        ("RGBa", (1, 2, 3, 255), (1, 2, 3)),
        ("RGBX", (1, 2, 3, 0), (1, 2, 3)),
        ("CMYK", (255, 0, 0, 0), (0, 255, 255)),
        ("YCbCr", (100, 128, 128), (100, 100, 100)),
        ("HSV", (0, 255, 255), (255, 0, 0)),
        ("LAB", (255, 128, 128), (255, 255, 255)),
        ("I", 4660, (18, 18, 18)),
        ("I", 70_000, (255, 255, 255)),
        ("I", -5, (0, 0, 0)),
        ("I;16", 4660, (18, 18, 18)),
        ("I;16B", 4660, (18, 18, 18)),
        ("F", 0.5, (128, 128, 128)),
        ("F", 100.4, (100, 100, 100)),
        ("F", float("nan"), (0, 0, 0)),
    ],
)
def test_every_mode_has_its_value(mode: str, value: object, expected: tuple[int, ...]) -> None:
    rgb = to_rgb(Image.new(mode, (2, 3), value))
    assert rgb.mode == "RGB" and rgb.size == (2, 3)
    slack = 1 if mode == "LAB" else 0  # a colour profile rounds
    assert np.abs(np.subtract(rgb.getpixel((1, 2)), expected)).max() <= slack


def test_palette_with_transparency_keeps_its_colours() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    rgb = read_image(encoded(palette, "PNG", transparency=bytes([0, 128])))
    assert [rgb.getpixel((x, 0)) for x in (0, 1)] == [(10, 20, 30), (40, 50, 60)]


def test_orientation_6_is_turned_upright_and_0_is_harmless() -> None:
    image = Image.new("RGB", (3, 2))
    image.putpixel((0, 0), (200, 0, 0))
    exif = Image.Exif()
    for orientation, size, corner in [
        (6, (2, 3), (1, 0)),
        (0, (3, 2), (0, 0)),
        (1, (3, 2), (0, 0)),
        (99, (3, 2), (0, 0)),
    ]:
        exif[ORIENTATION] = orientation
        upright = read_image(encoded(image, "PNG", exif=exif))
        assert upright.size == size
        assert upright.getpixel(corner) == (200, 0, 0)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_truncated_files_are_named_in_one_line(format: str, tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    content = encoded(noise, format)
    assert read_image(content).size == (64, 64)
    path = tmp_path / f"cut.{format.lower()}"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=r"cut\.\w+: cannot be read: ") as caught:
        read_image(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "reason"), [(b"", "empty file"), (b"no image", "no known image format")])
def test_files_that_are_no_images_are_named(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "it's 空.png"
    path.write_bytes(content)
    with pytest.raises(RunError) as caught:
        read_image(path)
    assert str(caught.value) == f"{path}: cannot be read: {reason}"
    with pytest.raises(RunError, match=f"row 3: cannot be read: {reason}"):
        read_image(content, name="row 3")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"absent\.png: cannot be read: No such file"):
        read_image(tmp_path / "absent.png")


def test_eval_image_resident_style_resizes_the_whole_image(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Image.fromarray(np.repeat(np.array([[[0] * 3, [255] * 3]], dtype=np.uint8), 20, 1)).save(path)  # 40 x 1
    image = eval_image(path, image_size=8, channels=3, **NORMAL, resident_style=True)
    assert image.shape == (3, 8, 8) and image.dtype == torch.float32
    assert image[0, 0, 0] == 0 and image[0, 0, -1] == 1


def test_eval_image_file_style_crops_the_centre(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    columns = np.repeat(np.array([[[255] * 3, [0] * 3, [255] * 3]], dtype=np.uint8), 40, 1)  # 120 x 40: centre black
    Image.fromarray(np.repeat(columns, 40, 0)).save(path)
    image = eval_image(path, image_size=35, channels=3, **NORMAL, resident_style=False)
    assert image.shape == (3, 35, 35) and (image == 0).all()


def test_eval_image_of_one_channel_is_gray(tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    Image.new("RGB", (8, 8), (255, 0, 0)).save(path)
    image = eval_image(path, image_size=8, channels=1, mean=(0.5,), std=(0.5,), resident_style=True)
    assert image.shape == (1, 8, 8)
    torch.testing.assert_close(image, torch.full((1, 8, 8), (76 / 255 - 0.5) / 0.5))


@pytest.mark.data
def test_all_images_of_the_sample_are_read(data_root: Path) -> None:
    paths = sorted((data_root / "imagenet-sample" / "val").glob("*/*"))
    assert len(paths) >= 200
    orientations, modes = set(), set()
    for path in paths:
        with Image.open(path) as image:
            stored, mode, orientation = image.size, image.mode, image.getexif().get(ORIENTATION)
        rgb = read_image(path)
        assert rgb.mode == "RGB"
        assert rgb.size == (stored[::-1] if orientation == 6 else stored)
        orientations.add(orientation)
        modes.add(mode)
    assert {0, 6} <= orientations and {"L", "RGB"} <= modes
