"""Networks in folders as Hugging Face's hub has them: `HubModel`. Needs huggingface_hub (the extra `hub`).

The folder holds `model.safetensors` as every run writes it, `config.json`, by which timm finds the network too (see
`verydeep.timm`), and `README.md`.
"""

import dataclasses
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard as HubPage
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from torch import Tensor, nn

from verydeep import __version__
from verydeep.errors import UsageError
from verydeep.files import json_text, write_whole
from verydeep.modelpage import LIBRARY, TASK, model_page
from verydeep.saved import load_network, load_run
from verydeep.training.rundir import WEIGHTS, read_result
from verydeep.weights import ModelCard, save_weights


class HubModel(nn.Module, PyTorchModelHubMixin, library_name=LIBRARY, pipeline_tag=TASK, tags=[LIBRARY]):
    """A trained network with its card, as huggingface_hub knows models: `from_pretrained`, `save_pretrained`,
    `push_to_hub`.

    Args:    network: of the catalogue
             card: what must be known to call it
             page: the README.md that is written beside its weights; default: made from the card
    Shape:   (N, C, H, W), normalised by the card's mean and std -> (N, classes)
    Raises:  UsageError: if the network is the user's own code, which no file can make again.
    """

    def __init__(self, network: nn.Module, card: ModelCard, page: str | None = None) -> None:
        super().__init__()
        if card.spec is None:
            raise UsageError(f"model {card.model}: is your own code; only networks of the catalogue go to a hub")
        self.network, self.card, self.page = network, card, page

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    @classmethod
    def of_run(cls, run: str | Path, *, weights: str = "last") -> "HubModel":
        """The network of a finished run, its page written from the run's config and result.

        Raises:  UsageError: if there is no finished run.
        """
        saved = load_run(run, device="cpu", weights=weights)
        result = read_result(Path(run)) if weights == "last" else None  # what it measured is of the last weights
        return cls(saved.model, saved.card, model_page(saved.card, config=saved.config, result=result))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> HubPage:
        return HubPage(self.page or model_page(self.card), ignore_metadata_errors=False)

    def _save_pretrained(self, save_directory: Path) -> None:
        save_weights(save_directory / WEIGHTS, self.network, self.card)
        write_whole(save_directory / "config.json", json_text(_config(self.card), indent=2) + "\n")

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        map_location: str = "cpu",
        **_: Any,
    ) -> "HubModel":
        file = Path(model_id) / WEIGHTS
        if not Path(model_id).is_dir():
            file = Path(
                hf_hub_download(
                    repo_id=model_id,
                    filename=WEIGHTS,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    token=token,
                    local_files_only=local_files_only,
                )
            )
        network, card = load_network(file)
        return cls(network.to(map_location), card).eval()


def _config(card: ModelCard) -> dict[str, Any]:
    """config.json: the card, and the fields by which timm makes the network and its transforms."""
    size = (card.channels, card.image_size, card.image_size)
    return {
        "architecture": "verydeep",
        "num_classes": len(card.classes),
        "label_names": card.classes,
        "model_args": {"spec": card.spec},
        "pretrained_cfg": {
            "input_size": size,
            "mean": card.mean,
            "std": card.std,
            "crop_pct": 1.0 if card.resident else 0.875,
            "num_classes": len(card.classes),
            "classifier": "head.linear",
            "first_conv": "stem.conv",
        },
        "verydeep": dataclasses.asdict(card) | {"version": __version__},
    }
