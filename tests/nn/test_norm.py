"""Norms against `tests/reference.py`, their running statistics, groups of images, and two processes."""

import datetime
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests import reference
from tests.nn.comparison import assert_agree, random_images, randomise
from verydeep import ResNet, ResNetSpec, UsageError
from verydeep.nn.norm import (
    GhostBatchNorm2d,
    RMSNorm2d,
    SyncBatchNorm2d,
    convert_batch_norm,
    default_num_groups,
    local_batch_norm,
    norm_factory,
)

FORMULAS = {
    "batch": lambda norm, x: reference.batch_norm(x, norm.weight, norm.bias),
    "layer": lambda norm, x: reference.layer_norm(x, norm.weight, norm.bias),
    "group": lambda norm, x: reference.group_norm(x, norm.weight, norm.bias, 3),
    "instance": lambda norm, x: reference.instance_norm(x, norm.weight, norm.bias),
    "rms": lambda norm, x: reference.rms_norm(x, norm.weight),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_norm_equals_its_formula(name):
    norm = norm_factory(name, num_groups=3 if name == "group" else None)(12).double()
    randomise(norm)
    x = 3 + 2 * random_images(4, 12, 5, 6)
    assert_agree(norm, lambda x: FORMULAS[name](norm, x), x)


def test_batch_norm_in_evaluation_equals_its_formula():
    norm = norm_factory("batch")(12).double().eval()
    randomise(norm)
    values = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    assert_agree(norm, lambda x: reference.frozen_batch_norm(x, *values), random_images(4, 12, 5, 6))


@pytest.mark.parametrize("norm_type", [nn.BatchNorm2d, GhostBatchNorm2d, SyncBatchNorm2d])
def test_running_variance_is_unbiased_and_the_output_is_not(norm_type):
    norm = norm_type(1).double()
    norm.group_size = 64
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).reshape(4, 1, 1, 1)
    y = norm(x)
    assert norm.running_var.item() == pytest.approx(1.066667, abs=1e-6)  # 0.9 + 0.1 * 5/3
    assert norm.running_mean.item() == pytest.approx(0.25)
    torch.testing.assert_close(y, (x - 2.5) / (1.25 + 1e-5) ** 0.5)


def ghost(group_size: int, *, channels: int = 6, momentum: float | None = 0.1) -> GhostBatchNorm2d:
    norm = GhostBatchNorm2d(channels, momentum=momentum).double()
    norm.group_size = group_size
    randomise(norm)
    return norm


@pytest.mark.parametrize(
    ("batch", "group_size", "sizes"),
    [(128, 64, [64, 64]), (80, 64, [40, 40]), (7, 3, [3, 2, 2]), (10, 3, [3, 3, 2, 2]), (64, 64, [64]), (3, 64, [3])],
)
def test_ghost_batch_norm_equals_batch_norm_of_each_group(batch, group_size, sizes):
    norm = ghost(group_size)
    x = 3 + 2 * random_images(batch, 6, 3, 2)
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    assert_agree(norm, lambda x: reference.ghost_batch_norm(x, norm.weight, norm.bias, sizes), x)
    steps = [reference.running_statistics(part, mean, variance, 0.1) for part in x.split(sizes)]
    shares = [size / batch for size in sizes]
    expected_mean = sum(share * step[0] for share, step in zip(shares, steps, strict=True))
    expected_variance = sum(share * step[1] for share, step in zip(shares, steps, strict=True))
    torch.testing.assert_close(norm.running_mean, expected_mean, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(norm.running_var, expected_variance, atol=1e-12, rtol=1e-12)
    assert norm.num_batches_tracked == 1


@settings(max_examples=25)
@given(batch=st.integers(2, 40), group_size=st.integers(2, 12))
def test_groups_of_a_batch_are_nearly_equal_and_no_larger_than_asked(batch, group_size):
    count = -(-batch // group_size)
    sizes = [batch // count + (i < batch % count) for i in range(count)]
    assert max(sizes) <= group_size
    norm, x = ghost(group_size), random_images(batch, 6, 2, 2)
    expected = reference.ghost_batch_norm(x, norm.weight, norm.bias, sizes)
    torch.testing.assert_close(norm(x), expected, atol=1e-12, rtol=1e-12)


def test_ghost_batch_norm_in_evaluation_is_batch_norm():
    norm = ghost(2).eval()
    plain = nn.BatchNorm2d(6).double().eval()
    plain.load_state_dict(norm.state_dict())
    x = random_images(8, 6, 3, 3)
    before = norm.running_mean.clone()
    assert torch.equal(norm(x), plain(x))
    assert torch.equal(norm.running_mean, before)


def test_ghost_batch_norm_averages_all_batches_where_momentum_is_none():
    norm = ghost(2, momentum=None)
    batches = [random_images(4, 6, 3, 3, seed=seed) for seed in range(3)]
    for x in batches:
        norm(x)
    expected = torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0)
    torch.testing.assert_close(norm.running_mean, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("norm_type", [GhostBatchNorm2d, SyncBatchNorm2d])
def test_a_large_mean_costs_no_digits_in_float32(norm_type):
    """Mean 1e4, deviation 1: E x^2 - (E x)^2 in float32 would lose all of the variance (1e8 has steps of 8)."""
    x = (1e4 + random_images(16, 4, 8, 8)).float()
    norm = norm_type(4)
    norm.group_size = 8
    y = norm(x)
    sizes = [8, 8] if norm_type is GhostBatchNorm2d else [16]
    expected = reference.ghost_batch_norm(x.double(), torch.ones(4), torch.zeros(4), sizes)
    # float32 keeps 1e4 to 1e-3 / 2, and so x - mean to about 5e-4
    torch.testing.assert_close(y.double(), expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(norm.running_var, torch.full((4,), 1.0), atol=0.02, rtol=0)


def test_instance_norm_refuses_maps_of_one_position():
    norm = norm_factory("instance")(8)
    with pytest.raises(UsageError, match="norm instance on a 1x1 map of 8 channels: its variance is zero"):
        norm(torch.randn(4, 8, 1, 1))
    assert norm(torch.randn(4, 8, 1, 2)).shape == (4, 8, 1, 2)


def test_group_norm_of_32_groups_takes_maps_of_one_position():
    norm = norm_factory("group", num_groups=32)(256).double()
    randomise(norm)
    x = random_images(4, 256, 1, 1)
    torch.testing.assert_close(norm(x), reference.group_norm(x, norm.weight, norm.bias, 32))
    assert norm(x).std() > 0.5


@pytest.mark.parametrize(("num_groups", "nearest"), [(4, 3), (0, 1), (-2, 1), (100, 6)])
def test_groups_that_do_not_divide_the_channels_are_refused_when_built(num_groups, nearest):
    with pytest.raises(UsageError, match=f"num_groups {num_groups}: must divide 6 channels; nearest {nearest}"):
        norm_factory("group", num_groups=num_groups)(6)


@given(channels=st.integers(1, 3000))
def test_default_groups_divide_the_channels(channels):
    groups = default_num_groups(channels)
    assert groups == reference.largest_num_groups(channels)
    assert channels % groups == 0


def test_unknown_norm_and_misplaced_groups_are_refused():
    with pytest.raises(UsageError, match="norm 'bacth': unknown; nearest: batch"):
        norm_factory("bacth")
    with pytest.raises(UsageError, match="num_groups 4: is for norm group, not layer"):
        norm_factory("layer", num_groups=4)


def test_rms_norm_ignores_scale_but_not_shift():
    norm = RMSNorm2d(4, eps=1e-12).double()
    x = random_images(2, 4, 3, 3)
    torch.testing.assert_close(norm(7 * x), norm(x))
    assert not torch.allclose(norm(x + 1), norm(x))


@pytest.mark.parametrize("options", [dict(group_size=2), dict(sync=True)], ids=["ghost", "sync"])
def test_conversion_keeps_parameters_buffers_names_and_hooks(options):
    model = ResNet(ResNetSpec(stage_units=(1, 1), width=4, order="full_preact"))
    fired = []
    norms = [module for module in model.modules() if type(module) is nn.BatchNorm2d]
    for norm in norms:
        norm.register_forward_hook(lambda module, _, __: fired.append(module))
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    convert_batch_norm(model, **options)
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert list(before) == list(after)
    assert all(after[name] is before[name] for name in before)
    assert {type(norm) for norm in norms} == {GhostBatchNorm2d if "group_size" in options else SyncBatchNorm2d}
    model(torch.randn(4, 3, 8, 8))
    assert len(norms) == 5  # stem, two of the first and second unit, head: 1 + 1 + 2 + 1
    assert sorted(map(id, fired)) == sorted(map(id, norms))


def test_conversion_reaches_each_norm_of_a_network_and_can_be_changed():
    model = ResNet(ResNetSpec(stage_units=(1, 1), width=4)).double()
    randomise(model)
    x = torch.cat([random_images(4, 3, 8, 8, seed=seed) for seed in (0, 1)])
    whole, parts = model(x), torch.cat([model(part) for part in x.split(4)])
    assert not torch.allclose(whole, parts)
    convert_batch_norm(model, group_size=8)
    torch.testing.assert_close(model(x), whole)
    convert_batch_norm(model, group_size=4)
    torch.testing.assert_close(model(x), parts)


def test_groups_and_all_processes_at_once_are_refused():
    with pytest.raises(UsageError, match=r"bn_group_size 64 with sync_bn: .*give one"):
        convert_batch_norm(nn.Sequential(nn.BatchNorm2d(4)), group_size=64, sync=True)


def test_sync_batch_norm_without_processes_is_batch_norm():
    norm, plain = SyncBatchNorm2d(6).double(), nn.BatchNorm2d(6).double()
    x = random_images(4, 6, 3, 3)
    assert torch.equal(norm(x), plain(x))
    assert torch.equal(norm.running_var, plain.running_var)


SIZES = [3, 5]  # images of the two processes


def network() -> ResNet:
    torch.manual_seed(0)
    model = ResNet(ResNetSpec(stage_units=(1, 1), width=4, order="full_preact", option="B")).double()
    randomise(model)
    return model


def loss_of(output: Tensor, start: int) -> Tensor:
    """A sum over images that treats each image and output apart, for images `start` and on."""
    weights = random_images(8, *output.shape[1:], seed=5)[start : start + len(output)]
    return (output * weights).sum()


def one_process(rank: int, folder: str) -> None:
    """Two synchronised modules on this process's images; what they give is saved in `folder`."""
    torch.set_num_threads(1)
    minute = datetime.timedelta(minutes=1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=minute)
    start = sum(SIZES[:rank])
    result: dict[str, Tensor] = {}
    for dtype in (torch.float64, torch.float32):
        norm = SyncBatchNorm2d(6)
        randomise(norm)
        norm.to(dtype)
        x = (5 + 2 * random_images(8, 6, 3, 3)).to(dtype).split(SIZES)[rank].requires_grad_()
        output = norm(x)
        loss_of(output, start).backward()
        result |= {f"{dtype} output": output.detach(), f"{dtype} input": x.grad}
        result |= {f"{dtype} {name}": p.grad for name, p in norm.named_parameters()}
        result |= {f"{dtype} {name}": buffer for name, buffer in norm.named_buffers()}
    model = network()
    convert_batch_norm(model, sync=True)
    output = model(random_images(8, 3, 8, 8).split(SIZES)[rank])
    loss_of(output, start).backward()
    result |= {"network output": output.detach()}
    result |= {f"network {name}": p.grad for name, p in model.named_parameters()}
    result |= {f"network {name}": buffer for name, buffer in model.named_buffers()}
    torch.save(result, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    folder: Path = tmp_path_factory.mktemp("processes")
    other = mp.get_context("spawn").Process(target=one_process, args=(1, str(folder)))
    other.start()
    one_process(0, str(folder))
    other.join()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 2e-5)],  # float32: 72 summands of size 5, 100 steps of 1e-7
    ids=["float64", "float32"],
)
def test_two_processes_of_3_and_5_images_equal_one_of_8(processes, dtype, tolerance):
    norm = nn.BatchNorm2d(6)
    randomise(norm)
    norm.double()
    x = (5 + 2 * random_images(8, 6, 3, 3)).requires_grad_()
    output = norm(x)
    loss_of(output, 0).backward()

    def assert_equal(name: str, ours: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(ours.to(expected.dtype), expected, atol=tolerance, rtol=tolerance, msg=name)

    first, second = ({key.removeprefix(f"{dtype} "): each[key] for key in each} for each in processes)
    assert_equal("output", torch.cat([first["output"], second["output"]]), output)
    assert_equal("input gradient", torch.cat([first["input"], second["input"]]), x.grad)
    for name, parameter in norm.named_parameters():
        assert_equal(f"gradient of {name}", first[name] + second[name], parameter.grad)
    for name, buffer in norm.named_buffers():
        assert_equal(name, first[name], buffer)
        assert torch.equal(first[name], second[name])


def test_a_synchronised_network_on_two_processes_equals_one(processes):
    model = network()
    output = model(random_images(8, 3, 8, 8))
    loss_of(output, 0).backward()
    first, second = ({key.removeprefix("network "): each[key] for key in each} for each in processes)
    both = torch.cat([first["output"], second["output"]])
    torch.testing.assert_close(both, output, atol=1e-10, rtol=1e-10)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(first[name] + second[name], parameter.grad, atol=1e-10, rtol=1e-10, msg=name)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(first[name], buffer, atol=1e-10, rtol=1e-10, msg=name)


def test_local_statistics_last_only_within_the_context():
    norm = SyncBatchNorm2d(4)
    with pytest.raises(RuntimeError, match="inside"), local_batch_norm(nn.Sequential(norm)):
        assert type(norm) is nn.BatchNorm2d
        raise RuntimeError("inside")
    assert type(norm) is SyncBatchNorm2d


def test_grouped_statistics_stay_in_single_precision_under_autocast():
    """Running statistics are those of the bf16 activations, not rounded to bf16 themselves."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    convert_batch_norm(norm, group_size=3)
    x = (torch.randn(6, 4, 5, 5) + 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        norm(x)
    mean = x.float().mean((0, 2, 3))
    torch.testing.assert_close(norm.running_mean, 0.1 * mean, rtol=1e-5, atol=1e-6)


def test_a_batch_norm_of_another_class_is_refused():
    class Fused(nn.BatchNorm2d):
        pass

    model = nn.Sequential(nn.Conv2d(3, 4, 1), Fused(4))
    with pytest.raises(UsageError, match=r"bn_group_size 4: 1 is a Fused"):
        convert_batch_norm(model, group_size=4)
    convert_batch_norm(model)
