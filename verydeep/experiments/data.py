"""Data sets of trials, loaded once a process, whatever the seed."""

from dataclasses import replace
from functools import lru_cache

from verydeep.config import RunConfig
from verydeep.data import Data
from verydeep.errors import UsageError
from verydeep.training.setup import load_data_of

DATA_FIELDS = (
    "data", "image_size", "max_images", "crop_padding", "flip", "augmentation", "color_jitter", "rand_augment",
    "random_erasing", "mean", "std", "bad_images", "workers", "data_root",
)  # fmt: skip

_LOADED: dict[RunConfig, Data] = {}  # a process trains on one or two


def data_key(config: RunConfig) -> RunConfig:
    """What `loaded_data` finds the data of a resolved config by: a config of which all else is left open."""
    return RunConfig(**{name: getattr(config, name) for name in DATA_FIELDS})


def loaded_data(key: RunConfig) -> Data:
    """The data set of a key.

    Raises:  UsageError: if it is not there.
    """
    if key not in _LOADED:
        _LOADED[key] = load_data_of(key.resolved())
    return _LOADED[key]


def give_data(key: RunConfig, data: Data) -> None:
    """Have `loaded_data` find a data set that was loaded elsewhere."""
    _LOADED[key] = data


@lru_cache
def has_data(key: RunConfig) -> bool:
    """Whether a data set is on disk, or can be downloaded; asked once a process."""
    try:
        loaded_data(key)
    except UsageError:
        return False
    return True


def data_of(config: RunConfig) -> Data:
    """The data of a resolved config, augmented by its seed; what is held out is another for each."""
    if config.validation:
        return load_data_of(config)
    data = loaded_data(data_key(config))
    return data if data.train is None else replace(data, train=data.train.with_seed(config.seed))


def small_data(name: str = "digits", image_size: int | None = None, max_images: int | None = None) -> Data:
    """A data set as `load_data` gives it."""
    return loaded_data(RunConfig(data=name, image_size=image_size, max_images=max_images))
