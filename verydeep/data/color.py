"""Colour augmentation of image files: `PcaJitter`, the standard one of ImageNet training. `train_transform` adds it."""

from typing import final

import torch
from PIL import Image

COLOR_JITTERS = ("none", "pca")

DEVIATION = 0.1  # of each alpha_i

# Of the RGB values of ImageNet's pixels in 0..1; eigenvectors are the columns.
EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


@final
class PcaJitter:
    """One colour added to every pixel of an RGB image, along the principal components of ImageNet's colours.

    x + sum_i p_i alpha_i lambda_i, alpha_i ~ N(0, 0.1^2), drawn once for each call from torch's default CPU generator.

    Source:  Krizhevsky, Sutskever, Hinton 2012, section 4.1; eigenvalues lambda_i and eigenvectors p_i of
             fb.resnet.torch, the code of He et al. 2016, Table 5, last row
    Differs: pixels stay whole: sums are rounded to 1/255 and cut to 0..1
    """

    def __init__(self) -> None:
        self._components = torch.tensor(EIGENVECTORS) * torch.tensor(EIGENVALUES) * (DEVIATION * 255)
        self._levels = torch.arange(256.0).expand(3, 256)

    def __call__(self, image: Image.Image) -> Image.Image:
        color = self._components @ torch.randn(3)
        table = (self._levels + color[:, None]).round().clamp(0, 255)  # (3, 256): what each value of a channel becomes
        return image.point(table.flatten().int().tolist())
