"""RandAugment and random erasing: random transforms of a training image that has its size already.

`load_data` gives them to the training split, which seeds torch's default CPU generator for each image.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

PixelTransform = Callable[[Tensor], Tensor]


def pixel_transform(*, rand_augment: int, random_erasing: float, mean: Sequence[float]) -> PixelTransform | None:
    """The transform of uint8 pixels; None if there is nothing to do. Its draws are from torch's default CPU generator.

    Args:    rand_augment: operations, each drawn from torchvision's 14, at magnitude 9 of 30; 0: none
             random_erasing: probability that a rectangle, 2 to 33 % of the area, takes the colour `mean`
             mean: of each channel, of pixels in 0..1
    Shape:   (C, H, W) -> (C, H, W)
    Source:  Cubuk et al. 2020, section 3 (RandAugment); Zhong et al. 2020, Alg. 1 (random erasing)
    """
    steps: list[v2.Transform] = []
    if rand_augment:
        steps.append(v2.RandAugment(num_ops=rand_augment, magnitude=9))
    if random_erasing:
        steps.append(v2.RandomErasing(random_erasing, value=[round(255 * value) for value in mean]))
    return v2.Compose(steps) if steps else None


def on_image(transform: PixelTransform, image: Image.Image) -> Image.Image:
    """The transform applied to a Pillow image in RGB."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return Image.fromarray(transform(pixels).permute(1, 2, 0).contiguous().numpy())
