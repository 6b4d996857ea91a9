"""`PcaJitter`: against the naive sum, its distribution, and that draws are those of the sample."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests import reference
from tests.data.folders import noise
from verydeep.data.color import PcaJitter
from verydeep.data.files import FileSplit
from verydeep.data.folder import PathImages
from verydeep.data.transform import train_transform


def test_one_color_is_added_as_the_naive_sum_says() -> None:
    jitter = PcaJitter()
    cut = 0
    for seed in range(20):
        image = noise(seed, (5, 4))
        torch.manual_seed(seed)
        alphas = (torch.randn(3) * 0.1).tolist()
        torch.manual_seed(seed)
        result = jitter(image)
        for x in range(5):
            for y in range(4):
                expected = reference.pca_jitter(image.getpixel((x, y)), alphas)
                cut += any(value in (0.0, 255.0) for value in expected)
                assert np.abs(np.subtract(result.getpixel((x, y)), expected)).max() <= 0.501  # half a level of rounding
    assert cut > 5


def test_colors_have_the_published_covariance() -> None:
    """Of 8,000 draws. A variance estimate deviates by sqrt(2 / 8000) = 1.6 %; five times that is allowed."""
    torch.manual_seed(0)
    jitter, grey = PcaJitter(), Image.new("RGB", (1, 1), (128, 128, 128))
    colors = np.array([jitter(grey).getpixel((0, 0)) for _ in range(8000)]) - 128.0
    vectors, values = np.array(reference.PCA_EIGENVECTORS), np.array(reference.PCA_EIGENVALUES)
    rounding = np.eye(3) / 12  # the variance of a rounding error
    expected = vectors @ np.diag((255 * 0.1 * values) ** 2) @ vectors.T + rounding
    assert np.abs(np.cov(colors.T) / expected - 1).max() < 0.08
    assert (np.abs(colors.mean(0)) < 5 * np.sqrt(np.diag(expected) / 8000)).all()


def test_jitter_leaves_crop_and_flip_as_they_were() -> None:
    image = noise(3, (60, 50)).point(lambda value: 64 + value // 2)  # nothing is cut
    for augmentation in ("scale", "scale+aspect", "none"):
        results = []
        for color_jitter in ("none", "pca"):
            torch.manual_seed(7)
            transform = train_transform(augmentation, 24, flip=True, color_jitter=color_jitter)
            results.append(np.asarray(transform(image)).astype(int))
        difference = (results[1] - results[0]).reshape(-1, 3)
        assert (difference == difference[0]).all() and difference.any()


def test_a_color_is_that_of_seed_epoch_and_sample(tmp_path: Path) -> None:
    """Crops of a plain image differ by their colour alone."""
    paths = []
    for number in range(4):
        paths.append(str(tmp_path / f"{number}.png"))
        noise(0).resize((1, 1)).resize((40, 30)).save(paths[-1])

    def colors(epoch: int | None, *, seed: int = 0, workers: int = 0) -> list[tuple[float, ...]]:
        augment = train_transform("scale", 16, flip=True, color_jitter="pca")
        split = FileSplit(
            PathImages(paths),
            torch.zeros(4),
            (0.0,) * 3,
            (1 / 255,) * 3,
            16,
            seed=seed,
            augment=augment,
            workers=workers,
        )
        [(images, _)] = split.batches([torch.arange(4)], epoch=epoch, device="cpu")
        assert torch.equal(images, images[:, :, :1, :1].expand_as(images))
        return [tuple(color) for color in images[:, :, 0, 0].tolist()]

    first = colors(0)
    assert len(set(first)) == 4 and colors(0, workers=1) == first
    assert len({tuple(first), tuple(colors(1)), tuple(colors(0, seed=1))}) == 3
    assert len(set(colors(None))) == 1
