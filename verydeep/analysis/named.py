"""`diagnose_named`: a diagnosis from names, as the command line has them: a model, a data set, a few settings."""

import torch
from torch import Tensor, nn

from verydeep.analysis.diagnose import diagnose
from verydeep.analysis.diagnosis import Diagnosis
from verydeep.analysis.unchanged import unchanged
from verydeep.config import MOST_FLOAT
from verydeep.data import Data, epoch_order, load_data
from verydeep.errors import UsageError, described, is_out_of_memory
from verydeep.models.load import LIBRARIES, default_image_size, load_any
from verydeep.training.distributed import choose_device

MOMENTUM = 0.9


def diagnose_named(
    model: str,
    *,
    data: str = "digits",
    data_root: str = "data",
    image_size: int | None = None,
    batch_size: int = 16,
    steps: int = 0,
    lr: float | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Diagnosis:
    """Diagnose a network at random initialisation, in training mode, on the first batch of a data set.

    Grey images are given to networks of other libraries as three equal channels.

    Args:    model: name of the catalogue, `timm:NAME`, `torchvision:NAME`, or FILE.py:FUNCTION
             image_size: side of the images; default: what the network was made for, or the data's own
             steps: training steps on the batch, with Adam, or with `lr` by SGD with momentum 0.9
    Raises:  UsageError: if a name or value breaks a rule.
    """
    if lr is not None and not 0 < lr <= MOST_FLOAT:
        raise UsageError(f"lr {lr}: must be above 0 and at most {MOST_FLOAT}")
    chosen = choose_device(device)
    side = image_size or default_image_size(model)
    loaded = load_data(
        data, image_size=side, root=data_root, crop_padding=0, flip=False, augmentation="none", workers=0
    )
    images, labels = _first_batch(loaded, batch_size=batch_size, seed=seed)
    if images.shape[1] == 1 and model.partition(":")[0] in LIBRARIES:
        images = images.expand(-1, 3, -1, -1).contiguous()
    torch.manual_seed(seed)
    network = load_any(
        model, num_classes=len(loaded.classes), in_channels=images.shape[1], image_size=loaded.image_size
    )
    network.to(chosen).train()
    images, labels = images.to(chosen), labels.to(chosen)
    _check_forward(network, images, model)
    return diagnose(network, images, labels, optimizer=_optimizer(network, lr), steps=steps)


@torch.no_grad()
def _check_forward(network: nn.Module, images: Tensor, model: str) -> None:
    """Refuse a network that raises on images, as the user's fault and not ours."""
    try:
        with unchanged(network):
            network(images)
    except Exception as error:  # whatever a user's forward raises
        if is_out_of_memory(error):
            raise
        shape = "x".join(map(str, images.shape))
        raise UsageError(f"model {model}: fails on images {shape} ({described(error)})") from error


def _optimizer(network: nn.Module, lr: float | None) -> torch.optim.Optimizer | None:
    return None if lr is None else torch.optim.SGD(network.parameters(), lr=lr, momentum=MOMENTUM)


def _first_batch(data: Data, *, batch_size: int, seed: int) -> tuple[Tensor, Tensor]:
    if data.train is None:
        raise UsageError(f"data {data.name!r}: no training set in it")
    indices = epoch_order(len(data.train), seed=seed, epoch=0)[:batch_size]
    images, labels = next(iter(data.train.batches([indices], epoch=None, device=torch.device("cpu"))))
    return images, labels
