"""Means and deviations against numpy over all pixels at once."""

import numpy as np
import pytest
import torch

from verydeep.data.statistic import mean_std


@pytest.mark.parametrize("shape", [(3, 5, 5, 3), (1500, 4, 4, 1), (2500, 2, 2, 3)])
def test_statistics_are_those_of_all_pixels(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    mean, std = mean_std(torch.from_numpy(pixels), image_size=shape[1])
    flat = pixels.reshape(-1, shape[-1]) / 255
    np.testing.assert_allclose(mean, flat.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, flat.std(0), rtol=1e-10)


def test_constant_images_have_exactly_no_deviation() -> None:
    mean, std = mean_std(torch.full((2000, 3, 3, 1), 77, dtype=torch.uint8), image_size=3)
    assert mean == (77 / 255,)
    assert std == (0.0,)
