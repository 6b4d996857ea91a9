"""A trained network described for people, as the README.md of its folder on a model hub. `hub` writes it."""

from collections.abc import Mapping
from typing import Any

import yaml

from verydeep.config import RunConfig
from verydeep.models.catalogue import spec_from_dict
from verydeep.weights import ModelCard

LIBRARY, TASK = "verydeep", "image-classification"


def model_page(
    card: ModelCard, *, config: RunConfig | None = None, result: Mapping[str, Any] | None = None, repo: str = "FOLDER"
) -> str:
    """The page: what the network is, what it takes, how it was trained, what it measured, how to load it.

    Every number is the card's, the config's or the result's; what is not known is left out.

    Args:    config, result: of the run that trained it
             repo: where it lies: a folder, or USER/NAME
    """
    parts = [_front_matter(card, config, result), f"# {card.model}", _summary(card), "## Use", _use(repo)]
    if config is not None:
        parts += ["## Training", _training(config, result or {})]
    if result is not None and (rows := _measured(result)):
        parts += ["## Measured", _table(rows)]
    return "\n\n".join(parts) + "\n"


def _front_matter(card: ModelCard, config: RunConfig | None, result: Mapping[str, Any] | None) -> str:
    values: dict[str, Any] = {
        "library_name": LIBRARY,
        "pipeline_tag": TASK,
        "tags": [LIBRARY, TASK, "residual-network"],
    }
    error = (result or {}).get("test_error_percent")
    if config is not None and error is not None:
        metric = {"type": "accuracy", "value": round(1 - error / 100, 6), "name": "top-1 accuracy"}
        data = {"type": config.data.partition(":")[0], "name": config.data, "split": "test"}
        values["model-index"] = [
            {"name": card.model, "results": [{"task": {"type": TASK}, "dataset": data, "metrics": [metric]}]}
        ]
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---"


def _summary(card: ModelCard) -> str:
    rows: list[tuple[str, Any]] = [("images", f"{card.channels} channels, {card.image_size} x {card.image_size}")]
    if card.spec is not None:
        depth = getattr(spec_from_dict(card.spec), "depth", None)
        rows += [("depth", depth)] if depth else []
        names = ("unit", "order", "shortcut", "option", "norm", "scale", "stride_on", "stem_order")
        rows += [(name, card.spec[name]) for name in names if name in card.spec]
    rows += [("mean of pixels in 0..1", _numbers(card.mean)), ("deviation", _numbers(card.std))]
    shown = ", ".join(card.classes[:10]) + (", ..." if len(card.classes) > 10 else "")
    rows += [("classes", f"{len(card.classes)}: {shown}")]
    return _table(rows)


def _use(repo: str) -> str:
    return f"""```python
from verydeep.hub import HubModel

model = HubModel.from_pretrained({repo!r})  # in eval mode
print(model.card)  # classes, and how images are normalised
```"""


def _training(config: RunConfig, result: Mapping[str, Any]) -> str:
    default = RunConfig()
    told = {
        name: value for name, value in config.to_dict().items() if value is not None and name not in ("out", "device")
    }
    changed = [(name, value) for name, value in told.items() if value != getattr(default, name) or name == "data"]
    command = result.get("command")
    text = f"`{command}`\n\n" if command else ""
    return text + _table(changed)


def _measured(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    names = ("test_error_percent", "test_top5_error_percent", "test_loss", "train_loss", "steps", "num_parameters")
    rows = [(name, result[name]) for name in names if result.get(name) is not None]
    return rows + [(f"version of {name}", value) for name, value in result.get("versions", {}).items()]


def _table(rows: list[tuple[str, Any]]) -> str:
    escaped = [(name, str(value).replace("|", "\\|").replace("\n", " ")) for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in escaped)])


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
