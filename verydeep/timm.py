"""Our networks by name in timm: `import verydeep.timm` registers them, once. Needs timm (the extra `timm`).

`timm.create_model("verydeep_preact_resnet164_cifar", num_classes=10)` makes a listed ResNet (timm takes no slash in a
name), `timm.create_model("verydeep", name="preact_resnet29_cifar")` any network, and
`timm.create_model("local-dir:FOLDER", pretrained=True)`, or `hf-hub:USER/NAME`, what `HubModel` saved.
"""

import sys
from collections.abc import Mapping
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from verydeep.errors import UsageError
from verydeep.models.catalogue import RESNETS, build_network, create_model, model_spec, spec_from_dict

PREFIX = "verydeep"
LAYERS = {"classifier": "head.linear", "first_conv": "stem.conv"}
# timm's names of what we name otherwise
_RENAMED = {"in_chans": "in_channels", "drop_path_rate": "stochastic_depth"}


def _build(*, name: str | None = None, spec: Mapping[str, Any] | None = None, **options: Any) -> nn.Module:
    """The network `name`, or the one that a saved spec declares, with timm's or our own options."""
    options = {_RENAMED.get(key, key): value for key, value in options.items()}
    if spec is not None:
        model = build_network(spec_from_dict(dict(spec) | options))
    elif name is not None:
        model = create_model(name, **options)
    else:
        raise UsageError(f"model {PREFIX}: name is required; one of verydeep.list_models()")
    model.num_classes = model.spec.num_classes  # type: ignore[union-attr]  # where timm looks for it
    return model


def _register(registered: str, **fixed: Any) -> None:
    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        return build_model_with_cfg(_build, registered, pretrained, **fixed | options)

    entry.__name__ = entry.__qualname__ = registered
    entry.__module__ = __name__
    entry.__doc__ = (
        f"verydeep's {fixed.get('name', 'network `name`')}; options of ResNetSpec, in_chans, drop_path_rate."
    )
    setattr(sys.modules[__name__], registered, register_model(entry))


def _default(name: str) -> dict[str, Any]:
    """What timm must know of a network for which there are no weights."""
    spec = model_spec(name)
    side = 32 if spec.stem == "cifar" else 224
    return dict(input_size=(spec.in_channels, side, side), num_classes=spec.num_classes, **LAYERS)


_cfgs: dict[str, Any] = {PREFIX: LAYERS} | {f"{PREFIX}_{name}": _default(name) for name in RESNETS}
default_cfgs = generate_default_cfgs(_cfgs)
_register(PREFIX)
for _name in RESNETS:
    _register(f"{PREFIX}_{_name}", name=_name)
