"""Compiled units against plain ones: the same numbers, one compilation a structure, the plain path where none can be.

Graphs are counted as torch's dynamo counts them. Most tests trace and differentiate as a compiled run does, and leave
out the C++ (backend `aot_eager`); those that generate code need a C++ compiler.
"""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.models.catalogue import create_model
from verydeep.models.densenet import DenseNet, DenseNetSpec
from verydeep.models.nfnet import NFResNet, NFResNetSpec
from verydeep.models.resnet import ResNet
from verydeep.models.spec import ResNetSpec
from verydeep.nn.norm import SyncBatchNorm2d, convert_batch_norm
from verydeep.nn.unit import ResidualUnit
from verydeep.training import compile as compile_module
from verydeep.training import run as run_module
from verydeep.training.compile import CompiledUnit, compile_units, undo_compile
from verydeep.training.distributed import World
from verydeep.training.loop import resume, train
from verydeep.training.state import TrainState, make_state
from verydeep.training.step import train_step

WORLD = World(rank=0, size=1, device=torch.device("cpu"))
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile for the CPU")
pytestmark = pytest.mark.filterwarnings(
    # of torch's own compiler
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:.*:DeprecationWarning:torch",
    "ignore:.*:FutureWarning:torch",
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test compiles for itself and counts from zero."""
    compile_module._compiled.cache_clear()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    compile_module._compiled.cache_clear()
    torch._dynamo.reset()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation without code generation: what is traced runs by torch's own kernels, bit for bit."""
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, *, fullgraph, options: whole(
        function, fullgraph=fullgraph, backend="aot_eager"
    ))  # fmt: skip


def graphs() -> int:
    """How many graphs were compiled since the test began."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def network(units: int = 2, **options) -> ResNet:
    """A network of three stages of `units` units, 8 channels wide."""
    torch.manual_seed(0)
    return ResNet(ResNetSpec(**(dict(stage_units=(units,) * 3, width=8, order="full_preact") | options)))


def batch(seed: int = 0, num_images: int = 16, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 3, size, size, generator=generator).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(0, 10, (num_images,), generator=generator)


def state_of(model: nn.Module, **changes) -> TrainState:
    return make_state(model, RunConfig(**changes).resolved(), WORLD)


def train_on(state: TrainState, steps: int, **options) -> list[float]:
    """Losses of steps on a few batches in turn."""
    losses = []
    for step in range(steps):
        images, labels = batch(step % 3)
        torch.manual_seed(step)
        state.tally.reset()
        train_step(
            state, [(images, labels)], step=step, lr=0.05, num_images=len(labels), num_micro_batches=1, **options
        )
        losses.append(state.tally.sums[0].item() / len(labels))
    return losses


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@needs_compiler
@pytest.mark.parametrize(
    "options",
    [
        {"stochastic_depth": 0.5, "shortcut": "dropout", "option": "B"},
        pytest.param({}, marks=pytest.mark.slow),
    ],
)
def test_twenty_steps_are_those_of_the_plain_network(options: dict):
    """To 1e-4 of each loss, weight and statistic: single precision, and compiled code sums in an order of its own."""
    plain, compiled = (state_of(network(1, **options), ema=0.9, momentum=0.9) for _ in range(2))
    assert compile_units(compiled.model) == 3
    assert compile_units(compiled.ema.model) == 3
    theirs, ours = train_on(plain, 20), train_on(compiled, 20)
    assert ours == pytest.approx(theirs, rel=1e-4) and len(set(ours)) == 20
    assert graphs() == 3
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[name], value, rtol=1e-4, atol=1e-4, msg=name)
    images, _ = batch(5)
    with torch.no_grad():
        torch.testing.assert_close(
            compiled.ema.model.eval()(images), plain.ema.model.eval()(images), rtol=1e-4, atol=1e-4
        )
    assert graphs() == 6


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "options",
    [
        {"stochastic_depth": 0.9},
        pytest.param({"unit": "bottleneck", "option": "B"}, marks=pytest.mark.slow),
        pytest.param({"scale": "skipinit", "norm": "none"}, marks=pytest.mark.slow),
        pytest.param({"order": "original", "norm": "group", "shortcut": "exclusive_gate"}, marks=pytest.mark.slow),
    ],
)
def test_depth_adds_no_graph(options: dict):
    """2 and 8 units a stage: as many graphs, with a rate of stochastic depth for each unit."""
    counts = []
    for units in (2, 8):
        torch._dynamo.utils.counters.clear()
        torch._dynamo.reset()
        compile_module._compiled.cache_clear()
        model = network(units, **options).train()
        distinct = compile_units(model)
        gradients(model, *batch())
        assert graphs() == distinct == (5 if model.spec.order == "original" and "unit" not in options else 6)
        model.eval()
        with torch.no_grad():
            model(batch(1)[0])
        counts.append(graphs())
        assert graphs() == 2 * distinct
    assert counts[0] == counts[1]


@pytest.mark.usefixtures("traced")
def test_ten_structures_stay_below_torchs_limit_of_recompilations():
    """10 widths, in one network each of them compiled: none falls back to running as it is."""
    units = nn.Sequential(*(ResidualUnit(nn.Linear(8, 8), postact=nn.LayerNorm(8)) for _ in range(10)))
    for width, unit in enumerate(units, start=1):
        unit.branch = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8))
    assert compile_units(units) == 10 > torch._dynamo.config.recompile_limit
    units(torch.randn(4, 8, requires_grad=True)).sum().backward()
    assert graphs() == 10


@pytest.mark.usefixtures("traced")
def test_a_factor_of_its_own_for_each_unit_costs_one_graph_more():
    """NF-ResNet divides each unit's signal by another number: torch makes it an input when it meets the second."""
    model = NFResNet(NFResNetSpec((9, 9))).train()
    plain = copy.deepcopy(model)
    assert compile_units(model) == 3
    images, labels = batch()
    ours, theirs = gradients(model, images, labels), gradients(plain, images, labels)
    assert graphs() == 5
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, msg=name)


@pytest.mark.usefixtures("traced")
def test_dense_layers_are_compiled():
    model = DenseNet(DenseNetSpec((3, 2), growth=4)).train()
    plain = copy.deepcopy(model)
    assert compile_units(model) == 5
    ours, theirs = gradients(model, *batch()), gradients(plain, *batch())
    assert graphs() == 5
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.usefixtures("traced")
def test_other_batch_sizes_need_no_new_graph():
    model = network(1).train()
    compile_units(model)
    gradients(model, *batch(num_images=24))
    before = graphs()
    for num_images in (20, 17):
        gradients(model, *batch(num_images=num_images))
    assert graphs() == before == 3


@pytest.mark.usefixtures("traced")
def test_groups_of_batch_norm():
    """Ghost batch norm cuts by the number of images: one more graph for each batch size, the numbers as they are."""
    model, plain = network(1), network(1)
    for each in (model, plain):
        convert_batch_norm(each.train(), group_size=8)
    compile_units(model)
    for num_images in (16, 12):
        ours, theirs = (gradients(each, *batch(num_images=num_images)) for each in (model, plain))
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-6, msg=name)
    for name, value in plain.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), value, msg=name)
    assert graphs() == 6


@pytest.mark.usefixtures("traced")
def test_copies_pickles_and_names():
    model = network()
    names = list(model.state_dict())
    compile_units(model)
    assert list(model.state_dict()) == names
    images, labels = batch()
    gradients(model, images, labels)
    reference = network().train()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(type(unit) is CompiledUnit for unit in twin.units())
        twin.load_state_dict(reference.state_dict())
        theirs = gradients(copy.deepcopy(reference), images, labels)
        for name, value in gradients(twin, images, labels).items():
            torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-6, msg=name)
    assert graphs() == 6  # the twins' too
    undo_compile(model)
    assert all(type(unit) is ResidualUnit for unit in model.units()) and "structure" not in vars(model.stages[0][0])


@pytest.mark.usefixtures("traced")
def test_a_hook_inside_a_unit_fires_and_a_hook_on_the_unit_lets_it_be_compiled():
    model = network(1).train()
    compile_units(model)
    seen: list[str] = []
    inner = model.stages[0][0].branch.conv1.register_forward_hook(lambda *_: seen.append("conv"))
    outer = [unit.register_forward_hook(lambda *_: seen.append("unit")) for unit in model.units()]
    gradients(model, *batch())
    assert seen == ["conv", "unit", "unit", "unit"] and graphs() == 2
    inner.remove()
    gradients(model, *batch())
    assert seen == ["conv"] + ["unit"] * 6 and graphs() == 3
    for handle in outer:
        handle.remove()


@pytest.mark.usefixtures("traced")
def test_units_run_as_they_are_where_something_must_see_their_inside():
    unit = network(1).stages[0][0].train()
    compile_units(unit)
    x = torch.randn(4, 8, 8, 8)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        unit(x)
    assert counter.get_total_flops() > 0
    with torch.device("meta"):
        copy.deepcopy(unit).to("meta")(torch.empty(4, 8, 8, 8))
    unit.eval()
    torch.func.vmap(unit)(x[None])
    torch.func.jvp(unit, (x,), (x,))
    assert graphs() == 0
    unit(x)
    assert graphs() == 1


@pytest.mark.usefixtures("traced")
def test_compiled_units_in_checkpointed_segments():
    model, plain = network(2).train(), network(2).train()
    compile_units(model)
    images, labels = batch()
    theirs = gradients(plain, images, labels)
    x = model.stem(images)
    for stage in model.stages:
        x = checkpoint(stage, x, use_reentrant=False)
    F.cross_entropy(model.head(x), labels).backward()
    assert graphs() >= 6
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.usefixtures("traced")
def test_a_bad_step_changes_nothing():
    state = state_of(network(1))
    compile_units(state.model)
    train_on(state, 1)
    before = {name: t.clone() for name, t in state.model.state_dict().items()}
    images, labels = batch()
    train_step(state, [(images * float("nan"), labels)], step=1, lr=0.1, num_images=len(labels), num_micro_batches=1)
    assert [name for name, t in state.model.state_dict().items() if not torch.equal(t, before[name])] == []


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("name", "count"), [("preact_resnet1001_cifar", 6), ("resnet1202_cifar", 5)])
def test_a_thousand_layers_within_the_default_recursion_limit(name, count):
    """As many graphs as 29 layers of bottlenecks have, or 20 of basic units."""
    model = create_model(name).train()
    assert compile_units(model) == count
    gradients(model, *batch(num_images=2))
    assert graphs() == count


# Whole runs


@needs_compiler
def test_a_run_with_compile(small, capsys):
    """Its losses are those of a plain run to 1e-4; it says what it compiles"""
    options = dict(steps=6, batch_size=32, log_steps=1, ema=0.9, seed=3)
    plain = train(small("plain", **options))
    compiled = train(small("compiled", compile=True, **options))
    said = capsys.readouterr().out
    assert "compiling 3 distinct units" in said and "compiled 3 distinct units in " in said
    for name in ("train_loss", "test_loss"):
        assert compiled.values[name] == pytest.approx(plain.values[name], rel=1e-4)
    assert graphs() == 6  # training, evaluation; nothing later, the odd batch included
    with pytest.raises(UsageError, match="compile 'yes': must be true or false"):
        RunConfig(compile="yes")


def test_a_run_is_resumed_with_or_without_compile(small, monkeypatch):
    unbroken = train(small("unbroken", steps=4))
    config = small("broken", steps=4, checkpoint_seconds=0.0)
    whole_step = run_module.train_step

    def dying_step(*args, step: int, **options) -> None:
        if step == 2:
            raise KeyboardInterrupt
        whole_step(*args, step=step, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "train_step", dying_step)
        train(config)
    monkeypatch.setattr(run_module, "prepare_step", lambda step, *args, say, **options: say("prepared") or step)
    resumed = resume(config.out, {"compile": True})
    assert resumed.values["train_loss"] == unbroken.values["train_loss"]


def test_without_a_compiler_a_run_says_so_and_is_the_plain_one(small, capsys, monkeypatch):
    plain = train(small("plain", steps=3))
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nonexistent/g++",))
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that its caches are off
        compiled = train(small("compiled", steps=3, compile=True))
    lines = [line for line in capsys.readouterr().out.splitlines() if "compile" in line.replace("compiled/", "")]
    assert len([line for line in lines if "the units run uncompiled" in line]) == 1
    assert any("No working C++ compiler" in line for line in lines)
    assert compiled.values["train_loss"] == plain.values["train_loss"]
    assert compiled.values["test_loss"] == plain.values["test_loss"]


def test_a_network_without_units_says_so(small, capsys):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert train(small(steps=1, compile=True), model).finished
    assert "compile: the network has no residual unit" in capsys.readouterr().out


def test_what_dynamo_cannot_trace_is_said_and_runs_plain(small, capsys):
    class Opaque(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1 if x.detach().sum().item() > 1e9 else 2)

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), ResidualUnit(Opaque(64, 64)), nn.Linear(64, 10))

    plain = train(small("plain", steps=2), model())
    compiled = train(small("compiled", steps=2, compile=True), model())
    out = capsys.readouterr().out
    assert out.count("the units run uncompiled") == 1
    assert compiled.values["train_loss"] == plain.values["train_loss"]


def test_synchronised_batch_norm_is_not_compiled():
    model = network(1)
    convert_batch_norm(model, sync=True)
    assert any(type(module) is SyncBatchNorm2d for module in model.modules())
    said: list[str] = []
    step = compile_module.prepare_step(
        print, state_of(model), RunConfig().resolved(), (3, 8, 8), batch_size=4, say=said.append
    )
    assert step is print and said == [
        "compile: batch-norm statistics over all processes (sync_bn) cannot be compiled; the units run uncompiled"
    ]
    assert all(type(unit) is ResidualUnit for unit in model.units())


@pytest.mark.slow
@needs_compiler
def test_two_processes_with_compile(tmp_path: Path):
    """Two processes on groups of 8 images are one process with all groups, compiled or not; to 1e-4."""
    flags = ["--model=preact_resnet8_cifar", "--batch-size=32", "--steps=6", "--bn-group-size=8", "--log-steps=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    losses = []
    for name, module, more in (
        ("plain", ["verydeep"], []),
        ("compiled", ["torch.distributed.run", "--nproc-per-node=2", "-m", "verydeep"], ["--compile"]),
    ):
        command = [sys.executable, "-m", *module, "train", *flags, *more, "--out", str(tmp_path / name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        assert ("compiled 3 distinct units" in done.stdout) == (name == "compiled")
        losses.append(json.loads((tmp_path / name / "result.json").read_text())["test_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
