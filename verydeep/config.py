"""What a run is: `RunConfig`, and the named protocols that fill what it leaves open. Torch-free.

A field that is `None` is taken from the protocol, and where the protocol leaves it open too, from the model's
name or the data. The command line has one flag for each field; `config.yaml` in a run directory is the resolved
config, enough to repeat the run.
"""

import dataclasses
import math
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verydeep.errors import UsageError, nearest, resolve, resolve_name
from verydeep.size import parse_size

MOST_INT, MOST_FLOAT = 2**63 - 1, 3.4e38  # numbers end up in 64 and 32 bits


def _option(text: str, default: Any = None, **rule: Any) -> Any:
    """A field with its help text and the rule that its value must keep."""
    return field(default=default, metadata={"help": text, **rule})


@dataclass(frozen=True)
class RunConfig:
    """One training run, declared.

    Learning rates are per optimizer step, for the mean loss over the step's samples. Fractions of the run
    (`milestones`, `warmup`) scale with `steps`. Field help texts are the reference.

    Raises:  UsageError: if a value breaks its field's rule.
    Source:  He et al. 2016, appendix, for the two `he2016_*` protocols.
    """

    model: str = _option("network name (see `verydeep models`) or FILE.py:FUNCTION", "preact_resnet110_cifar")
    data: str = _option("digits, cifar10, cifar100, folder:DIR, parquet:DIR, csv:FILE, hub:NAME", "digits")
    out: str | None = _option("run directory; default: a new one below runs/")
    protocol: str = _option("quick, he2016_cifar, he2016_imagenet", "quick")
    seed: int = _option("seed of weights, order, augmentation, dropout", 0, least=0)
    finetune: str | None = _option(
        "weights to start from: a run directory, a safetensors, or a state dict of torchvision or timm; default: none"
    )
    freeze: str | None = _option("modules left as they are, such as stem,stages.0; default: none")

    epochs: int | None = _option("passes over the training set (or give --steps)", least=1)
    steps: int | None = _option("optimizer steps in all (or give --epochs)", least=1)
    batch_size: int | None = _option("images a micro-batch, over all processes", least=1)
    accumulate: int | None = _option("micro-batches an optimizer step", least=1)
    last_batch: str | None = _option("the incomplete batch of an epoch: keep or drop", choices=("keep", "drop"))

    optimizer: str | None = _option(
        "sgd, adamw, or lars (large batches; its lr is of order 1 to 30)", choices=("sgd", "adamw", "lars")
    )
    lr: float | None = _option("peak learning rate", above=0)
    momentum: float | None = _option("momentum of sgd and lars, first beta of adamw; 0 to below 1", least=0, below=1)
    lars_trust: float = _option("lars: trust coefficient, a layer's relative step at lr 1", 0.001, above=0)
    nesterov: bool | None = _option("Nesterov momentum")
    weight_decay: float | None = _option("weight decay", least=0)
    weight_decay_on: str | None = _option(
        "all parameters, or only those with two or more dimensions", choices=("all", "weights")
    )
    schedule: str | None = _option(
        "course of the learning rate: steps, one_cycle, cosine, linear, polynomial, constant",
        choices=("steps", "one_cycle", "cosine", "linear", "polynomial", "constant"),
    )
    schedule_power: float = _option("schedule polynomial: power of what is left of the run", 2.0, above=0)
    milestones: tuple[float, ...] | None = _option(
        "schedule steps: fractions of the run at which lr falls", above=0, below=1
    )
    lr_drop: float | None = _option("schedule steps: factor at each milestone", above=0)
    warmup: float | None = _option("fraction of the run that warms up", least=0, below=1)
    warmup_lr: float | None = _option("constant lr during warm-up; none: a linear rise to lr", above=0)
    label_smoothing: float | None = _option("label smoothing; 0 to below 1", least=0, below=1)
    class_weights: str | None = _option(
        "of the loss: none, or balanced (rare classes as much as common ones)", choices=("none", "balanced")
    )
    mixup: float | None = _option("alpha of mixup: batches blended with themselves; 0: none", least=0)
    cutmix: float | None = _option("alpha of cutmix; 0: none; with mixup too, one of them a micro-batch", least=0)
    clip_grad_norm: float | None = _option("largest global gradient norm; none: no clipping", above=0)
    clip_adaptive: float | None = _option(
        "largest ratio of a unit's gradient to its weights (adaptive gradient clipping); none: no clipping", above=0
    )
    ema: float | None = _option("decay of the weights' moving average per step; 0: none", least=0, below=1)

    order: str | None = _option(
        "original, bn_after_addition, relu_before_addition, relu_only_preact, full_preact; default: by model name"
    )
    unit: str | None = _option("one_layer, basic, bottleneck; default: by model name and depth")
    shortcut: str | None = _option(
        "identity, none, constant, exclusive_gate, shortcut_gate, conv1x1, dropout; default: by model name"
    )
    option: str | None = _option("where the dimension changes: A (pad) or B (project)")
    norm: str | None = _option("batch, layer, group, instance, rms, none")
    num_groups: int | None = _option("groups of group norm; default: by channels", least=1)
    scale: str | None = _option("branch scaling: none, inverse_sqrt, zero_init, skipinit, rezero, fixup")
    stochastic_depth: float | None = _option("drop probability of the last unit, linear in depth", least=0, below=1)
    width: int | None = _option("channels of the stem and of the first stage; default: 16, of ImageNet's 64", least=1)
    widen: float | None = _option("factor on every stage's channels, not on the stem's", above=0)
    stride_on: str | None = _option("stride of a bottleneck: 1x1 (the paper) or 3x3 (v1.5)")
    stem_order: str | None = _option(
        "ImageNet stem of order full_preact: act_first (the paper) or pool_first (timm's resnetv2)"
    )
    gate_bias: float | None = _option("initial bias b_g of a gate")
    shortcut_scale: float | None = _option("shortcut constant: factor on the shortcut")
    branch_scale: float | None = _option("shortcut constant: factor on the branch")
    shortcut_dropout: float | None = _option("shortcut dropout: rate", least=0, below=1)

    bn_group_size: int | None = _option("batch-norm statistics over groups of so many images", least=2)
    sync_bn: bool = _option("batch-norm statistics over all processes", False)

    image_size: int | None = _option("resize every image to this many pixels a side", least=1)
    max_images: int | None = _option("of each split, so many images at most, drawn once for all seeds", least=1)
    crop_padding: int | None = _option("pixels padded before the random crop; default: size // 8", least=0)
    flip: bool | None = _option("random horizontal flips; default: by data set")
    augmentation: str | None = _option(
        "of image folders: scale (He et al.), scale+aspect (Inception), none", choices=("scale", "scale+aspect", "none")
    )
    color_jitter: str | None = _option(
        "of image folders: pca (one colour added to a whole image, Krizhevsky et al.), none", choices=("none", "pca")
    )
    rand_augment: int | None = _option("RandAugment: operations a training image; 0: none", least=0)
    random_erasing: float | None = _option(
        "probability that a rectangle of a training image is erased", least=0, below=1
    )
    mean: tuple[float, ...] | None = _option("channel means of pixels in 0..1; default: of the training set")
    std: tuple[float, ...] | None = _option("channel deviations; default: of the training set")
    data_root: str = _option("folder of cifar10 and cifar100, downloaded into it when absent", "data")
    validation: int = _option("training images held out for choosing; the test set never chooses", 0, least=0)
    bad_images: str = _option("an unreadable image: error or skip", "error", choices=("error", "skip"))
    workers: int | None = _option("worker processes of image folders; default: one a core", least=0)

    device: str = _option("auto, cpu, cuda, cuda:N", "auto")
    memory_budget: str | None = _option(
        "most memory of a step, such as 2GB; what does not fit is recomputed; default: all is kept", size=True
    )
    precision: str = _option("fp32 (TF32 in CUDA convolutions) or bf16", "fp32", choices=("fp32", "bf16"))
    compile: bool = _option("compile the units, each structure once; on CUDA record whole steps too", False)
    log_steps: int = _option("steps between log lines", 10, least=1)
    eval_epochs: int = _option("epochs between evaluations; the end is always evaluated", 1, least=1)
    eval_steps: int | None = _option("steps between evaluations, in place of eval_epochs", least=1)
    early_stop: int | None = _option(
        "end the run once the validation error has not fallen for so many evaluations; default: never", least=1
    )
    logger: str = _option("who gets the numbers too, beside TensorBoard's events: wandb, mlflow", "tensorboard")
    checkpoint_seconds: float = _option("seconds between checkpoints", 30.0, least=0)
    max_bad_steps: int = _option(
        "steps with a non-finite loss or gradient before the run stops, counted at log lines", 10, least=1
    )

    def __post_init__(self) -> None:
        out: Any = self.out
        if isinstance(out, os.PathLike):  # a Path is welcome
            object.__setattr__(self, "out", os.fspath(out))
        for item in dataclasses.fields(self):
            _check(item, getattr(self, item.name))
        if self.epochs is not None and self.steps is not None:
            raise UsageError(f"epochs {self.epochs} and steps {self.steps}: give one of the two, not both")
        object.__setattr__(self, "protocol", resolve_name("protocol", self.protocol, PROTOCOLS))

    def resolved(self) -> "RunConfig":
        """This config with every open field that its protocol declares filled in."""
        declared = dict(resolve("protocol", self.protocol, PROTOCOLS))
        if self.epochs is not None or self.steps is not None:
            declared["epochs"] = declared["steps"] = None
        open_fields = {name: value for name, value in declared.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **open_fields)

    def model_options(self) -> dict[str, Any]:
        """The options of `create_model` that this config sets."""
        return {name: getattr(self, name) for name in MODEL_OPTIONS if getattr(self, name) is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain YAML-safe values; `from_dict` reads them back."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """A config from plain values.

        Raises:  UsageError: if a key is no field, naming the nearest, or a value breaks its rule.
        """
        known = [item.name for item in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise UsageError(f"config key {name!r}: unknown; nearest: {', '.join(nearest(str(name), known))}")
        fields: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in values.items()}
        return cls(**fields)


MODEL_OPTIONS = (
    "order", "unit", "shortcut", "option", "norm", "num_groups", "scale", "stochastic_depth", "width", "widen",
    "stride_on", "stem_order", "gate_bias", "shortcut_scale", "branch_scale", "shortcut_dropout",
)  # fmt: skip


def _check(item: dataclasses.Field, value: Any) -> None:
    rule, kind = item.metadata, _kind(item)
    if value is None and type(None) in typing.get_args(item.type):
        return
    if not isinstance(value, _ACCEPTED[kind]) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{item.name} {value!r}: must be {_NOUNS[kind]}")
    if "size" in rule:
        parse_size(str(value), name=item.name)
    if isinstance(value, str):
        check_text(item.name, value)
    if "choices" in rule and value not in rule["choices"]:
        raise UsageError(f"{item.name} {value!r}: must be one of {', '.join(rule['choices'])}")
    numbers: tuple = (value,) if kind in (int, float) else value if isinstance(value, tuple) else ()
    for number in numbers:
        if not isinstance(number, (int, float)) or not math.isfinite(number):
            raise UsageError(f"{item.name} {number!r}: must be a finite number")
        if number > (most := MOST_INT if isinstance(number, int) else MOST_FLOAT) or number < -most:
            raise UsageError(f"{item.name} {number}: must be at most {most}")
        if "least" in rule and number < rule["least"]:
            raise UsageError(f"{item.name} {number}: must be at least {rule['least']}")
        if "above" in rule and number <= rule["above"]:
            raise UsageError(f"{item.name} {number}: must be above {rule['above']}")
        if "below" in rule and number >= rule["below"]:
            raise UsageError(f"{item.name} {number}: must be below {rule['below']}")


def check_text(called: str, text: str) -> None:
    """Refuse text that can name nothing: an unset variable of the shell, say.

    Raises:  UsageError: if it is empty or holds a NUL character.
    """
    if not text or "\0" in text:
        raise UsageError(f"{called} {text!r}: must be text of at least one character, without NUL")


def _kind(item: dataclasses.Field) -> type:
    """The type of a field, without `| None` and item types."""
    options = [item.type] if typing.get_origin(item.type) is tuple else [*typing.get_args(item.type), item.type]
    return typing.get_origin(options[0]) or typing.cast(type, options[0])


_ACCEPTED: dict[type, tuple[type, ...]] = {
    int: (int,), float: (int, float), bool: (bool,), str: (str,), tuple: (tuple,),
}  # fmt: skip
_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", tuple: "numbers"}


_COMMON: dict[str, Any] = dict(
    accumulate=1, last_batch="keep", optimizer="sgd", momentum=0.9, nesterov=False, lr_drop=0.1, label_smoothing=0.0,
    class_weights="none", mixup=0.0, cutmix=0.0, rand_augment=0, random_erasing=0.0,
    ema=0.0, warmup=0.0, augmentation="scale+aspect", color_jitter="none", weight_decay_on="all",
    milestones=(0.5, 0.75),
)  # fmt: skip

PROTOCOLS: dict[str, dict[str, Any]] = {
    # A short modern one for small budgets.
    "quick": _COMMON | dict(
        epochs=15, batch_size=64, lr=0.05, nesterov=True, weight_decay=5e-4, weight_decay_on="weights",
        schedule="one_cycle", warmup=0.2,
    ),
    # He et al. 2016, appendix: 64k steps of 128 on two devices (batch norm over 64), lr 0.01 for 400 steps, then 0.1,
    # divided by 10 at 32k and 48k; pad 4, crop, flip.
    "he2016_cifar": _COMMON | dict(
        steps=64_000, batch_size=128, bn_group_size=64, lr=0.1, weight_decay=1e-4,
        schedule="steps", milestones=(32_000 / 64_000, 48_000 / 64_000), warmup=400 / 64_000, warmup_lr=0.01,
    ),
    # He et al. 2016, appendix and section 5: 256 on eight devices (batch norm over 32), no warm-up, 90 epochs; the
    # data augmentation of He et al. 2015: scale, crop, flip, colour.
    "he2016_imagenet": _COMMON | dict(
        epochs=90, batch_size=256, bn_group_size=32, lr=0.1, weight_decay=1e-4,
        schedule="steps", milestones=(30 / 90, 60 / 90), augmentation="scale", color_jitter="pca",
    ),
}  # fmt: skip
