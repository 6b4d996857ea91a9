"""Normalisation against float64, geometry against known answers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2

from tests.data.folders import noise
from verydeep.data.transform import Normalise, ScaleCrop, eval_transform, square, train_transform

CPU = torch.device("cpu")


@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 3]), st.integers(0, 1000))
def test_normalise_is_x_less_mean_over_std(batch: int, side: int, channels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy(rng.integers(0, 256, (batch, side, side, channels), dtype=np.uint8))
    mean, std = rng.uniform(0, 1, channels), rng.uniform(0.1, 1, channels)
    images = Normalise(mean.tolist(), std.tolist(), image_size=side, device=CPU)(pixels)
    expected = ((pixels.numpy() / 255 - mean) / std).transpose(0, 3, 1, 2)
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    # Two float32 roundings of numbers below 20: 20 * 2^-24 * 2.
    np.testing.assert_allclose(images.numpy(), expected, rtol=0, atol=3e-6)


def test_normalised_value_does_not_depend_on_the_batch() -> None:
    pixels = torch.randint(0, 256, (67, 11, 11, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    normalise = Normalise((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), image_size=11, device=CPU)
    together = normalise(pixels)
    assert all(torch.equal(together[i : i + 1], normalise(pixels[i : i + 1])) for i in range(67))


def test_eval_transform_takes_the_central_224_of_256() -> None:
    # 512 x 1024 of four columns: after the resize to 256 x 512, the centre spans columns 144..368 of 512.
    columns = np.repeat(np.arange(4, dtype=np.uint8) * 60, 256)
    image = Image.fromarray(np.repeat(np.repeat(columns[None], 512, 0)[..., None], 3, 2))
    result = np.asarray(eval_transform(224)(image))
    assert result.shape == (224, 224, 3)
    assert result[0, 50, 0] == 60 and result[0, 174, 0] == 120
    assert 60 < result[0, 112, 0] <= 120 and result[0, 108, 0] == 60


@pytest.mark.parametrize(("image_size", "resize"), [(224, None), (320, 320), (224, 256), (64, 73), (30, 47)])
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (301, 300), (40, 90), (640, 427)])
def test_eval_transform_is_resize_and_central_crop(size: tuple[int, int], image_size: int, resize: int | None) -> None:
    image = noise(0, size)
    result = np.asarray(eval_transform(image_size, resize)(image))
    shorter = resize or 256
    plain = transforms.Compose([transforms.Resize(shorter), transforms.CenterCrop(image_size)])
    assert np.array_equal(result, np.asarray(plain(image)))
    # and by Pillow alone
    width, height = (shorter * side // min(size) for side in size)
    left, top = round((width - image_size) / 2), round((height - image_size) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    assert np.array_equal(result, np.asarray(resized.crop((left, top, left + image_size, top + image_size))))


@pytest.mark.parametrize("size", [1, 32, 224])
@pytest.mark.parametrize("augmentation", ["scale", "scale+aspect", "none"])
def test_train_transforms_give_the_size(augmentation: str, size: int) -> None:
    image = Image.new("RGB", (70, 300))
    assert train_transform(augmentation, size, flip=True)(image).size == (size, size)


def test_scale_keeps_the_aspect_and_the_range_of_sides() -> None:
    # A ramp over 480 columns: the step between neighbours tells to which width the image was scaled.
    ramp = np.linspace(0, 255, 480).astype(np.uint8)
    image = Image.fromarray(np.repeat(np.repeat(ramp[None], 480, 0)[..., None], 3, 2))
    transform = train_transform("scale", 224, flip=False)
    spans = [float(np.ptp(np.asarray(transform(image))[0, :, 0])) for _ in range(60)]
    assert all(255 * 224 / 480 - 3 <= span <= 255 * 224 / 256 + 3 for span in spans)
    assert min(spans) < 140 and max(spans) > 190


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (200, 333), (64, 64), (1000, 90)])
@pytest.mark.parametrize("image_size", [224, 20])
def test_scale_crop_is_torchvisions_scale_then_crop(size: tuple[int, int], image_size: int) -> None:
    """Draw for draw. Weights rounded otherwise change a value by 2 at most; a crop one pixel off, by tens."""
    image = noise(1, size)
    for shorter in (range(256, 257), range(300, 301), range(256, 481)):
        ours, plain = ScaleCrop(image_size, shorter), v2.Compose([v2.Resize(0), v2.RandomCrop(image_size)])
        for seed in range(4):
            torch.manual_seed(seed)
            result = np.asarray(ours(image)).astype(int)
            torch.manual_seed(seed)
            plain.transforms[0] = v2.Resize(shorter[int(torch.randint(len(shorter), ()))])
            expected = np.asarray(plain(image)).astype(int)
            difference = np.abs(result - expected)
            assert difference.max() <= 2 and difference.mean() < 0.5


def test_scale_crop_draws_every_length_and_corner() -> None:
    """A ramp tells where a crop came from: lengths 2, 3 and corners 0..length - 1 of a crop of one pixel."""
    ramp = Image.fromarray(np.arange(6, dtype=np.uint8)[None].repeat(6, 0) * 40)
    transform = ScaleCrop(1, range(2, 4))
    drawn = {transform(ramp).getpixel((0, 0)) for _ in range(100)}
    centres = {np.asarray(ramp.resize((length, 1), Image.Resampling.BILINEAR)).ravel()[column] for length in (2, 3)
               for column in range(length)}  # fmt: skip
    assert drawn == centres and len(drawn) == 5


def test_none_without_flip_is_the_test_transform() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    assert train_transform("none", 24, flip=False)(image).tobytes() == eval_transform(24)(image).tobytes()


def test_square_ignores_the_aspect_and_leaves_the_size_alone() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8))
    assert square(image, 16).tobytes() == image.tobytes()
    assert square(Image.new("RGB", (10, 90)), 7).size == (7, 7)
