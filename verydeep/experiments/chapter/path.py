"""Why residual networks work (section 7): deleted units, path lengths, loss surfaces."""

import statistics
from collections.abc import Sequence

import torch

from verydeep.analysis.landscape import loss_line, loss_plane, roughness
from verydeep.analysis.lesion import single_deletions
from verydeep.analysis.paths import PathGradients, sampled_paths, summed_paths
from verydeep.experiments.chapter.figure import landscape_charts, lesion_charts, path_charts
from verydeep.experiments.chapter.setting import base, data_of, ordering
from verydeep.experiments.experiment import Experiment, Measurement, Results, Setting, Trial, Verdict
from verydeep.experiments.fit import config_of, fit
from verydeep.experiments.measured import listed, median_of
from verydeep.report.section import FAILS, HOLDS
from verydeep.training.evaluate import evaluate


def _lesion_trials(setting: Setting) -> Sequence[Trial]:
    # the plain network is as deep as still trains
    networks = {"resnet56": "resnet56_cifar", "plain20": "plain20_cifar"}
    fields = base(setting, steps=300)

    def trial(name: str, model: str) -> Trial:
        def measure(seed: int) -> Measurement:
            trained = fit(config_of(fields, seed, model=model)).model
            test = data_of(fields).test
            assert test is not None
            whole = evaluate(trained, test).error_percent
            lesions = single_deletions(trained, test)
            return {
                "error_percent": whole,
                "sites": [lesion.sites[0] for lesion in lesions],
                "deleted_error_percent": [lesion.error_percent for lesion in lesions],
                "median_increase": statistics.median(lesion.error_percent - whole for lesion in lesions),
            }

        return Trial(name, measure, cost=8.0)

    return [trial(name, model) for name, model in networks.items()]


def _judge_lesion(results: Results, setting: Setting) -> dict[str, Verdict]:
    residual, plain = (median_of(results[name], "median_increase") for name in ("resnet56", "plain20"))
    return {
        "veit-lesion": ordering(
            residual < 5 and plain > 4 * max(residual, 1),
            results,
            "median_increase",
            quantity="median rise of the test error by one deletion, points",
            of="resnet56",
            detail=f"one unit of 27 deleted: {residual:.3g} points; one layer of the plain network: {plain:.3g} points",
        )
    }


def _path_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=200)

    def measure(seed: int) -> Measurement:
        trained = fit(config_of(fields, seed, model="preact_resnet110_cifar")).model
        train = data_of(fields).train
        assert train is not None
        images, labels = next(train.batches([torch.arange(64)], epoch=None, device="cpu"))
        # Veit et al. measure single paths; summed up, paths cancel in part, so both are kept
        single = sampled_paths(trained, images, labels, num_paths=8, seed=seed)
        summed = summed_paths(trained, images, labels)
        low, high = single.layer_range(0.95)
        return {
            "shares": single.shares.tolist(),
            "summed_shares": summed.shares.tolist(),
            "low": low,
            "high": high,
            "share_10_to_34": _share_between(single, 10, 34),
            "summed_share_10_to_34": _share_between(summed, 10, 34),
        }

    return [Trial("preact_resnet110", measure, cost=40.0)]


def _share_between(paths: PathGradients, low: int, high: int) -> float:
    """Share of the gradient in paths of `low` to `high` layers."""
    shares = enumerate(paths.shares.tolist())
    return sum(share for k, share in shares if low <= k * paths.layers_per_branch <= high)


def _judge_path(results: Results, setting: Setting) -> dict[str, Verdict]:
    measurements = results["preact_resnet110"]
    within, summed = (median_of(measurements, key) for key in ("share_10_to_34", "summed_share_10_to_34"))
    low, high = median_of(measurements, "low"), median_of(measurements, "high")
    return {
        "veit-paths": Verdict(
            HOLDS if within > 0.5 else FAILS,
            [[m["low"], m["high"]] for m in measurements],
            "layers between which 95 % of the gradient's size lies, single paths times their number",
            f"{100 * within:.3g} % of the gradient's size comes from paths of 10 to 34 layers, 95 % from {low:g} to "
            f"{high:g}; of the paths summed up, which cancel in part, {100 * summed:.3g} %",
        )
    }


def _landscape_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=200)

    def trial(kind: str) -> Trial:
        def measure(seed: int) -> Measurement:
            trained = fit(config_of(fields, seed, model=f"{kind}56_cifar")).model
            train = data_of(fields).train
            assert train is not None

            batch = next(train.batches([torch.arange(256)], epoch=None, device="cpu"))
            line = loss_line(trained, batch, seed=seed)
            plane = loss_plane(trained, batch, seed=seed, num_points=11)
            return {
                "positions": line.positions.tolist(),
                "losses": line.losses.tolist(),
                "plane_positions": plane.positions.tolist(),
                "plane": plane.losses.tolist(),
                **{f"line_{name}": value for name, value in vars(roughness(line.losses)).items()},
                **{f"plane_{name}": value for name, value in vars(roughness(plane.losses)).items()},
            }

        return Trial(kind, measure, cost=40.0)

    return [trial(kind) for kind in ("plain", "resnet")]


def _judge_landscape(results: Results, setting: Setting) -> dict[str, Verdict]:
    bending = {name: median_of(values, "line_bending") for name, values in results.items()}
    return {
        "li-landscape": ordering(
            bending["plain"] > bending["resnet"],
            results,
            "line_bending",
            quantity="mean absolute second difference over the range, along a line",
            of="plain",
            detail=(
                f"bending {listed(results, 'line_bending')}; share of negative curvature on a plane "
                f"{listed(results, 'plane_negative_curvature')}; minima on it {listed(results, 'line_num_minima')}"
            ),
        )
    }


PATH = (
    Experiment(
        name="veit-lesion",
        kind="trained",
        title="Section 7: one unit deleted",
        trials=_lesion_trials,
        judge=_judge_lesion,
        charts=lesion_charts,
        claims=("veit-lesion",),
        settings="resnet56 and plain20 after 300 steps, each unit deleted in turn, no retraining",
    ),
    Experiment(
        name="veit-paths",
        kind="trained",
        title="Section 7: gradient by path length",
        trials=_path_trials,
        judge=_judge_path,
        charts=path_charts,
        claims=("veit-paths",),
        settings="preact_resnet110 after 200 steps, 64 training images",
    ),
    Experiment(
        name="li-landscape",
        kind="trained",
        title="Section 7: loss surfaces",
        trials=_landscape_trials,
        judge=_judge_landscape,
        charts=landscape_charts,
        claims=("li-landscape",),
        settings="56 layers, 200 steps, 256 training images, batch norm by the batch's statistics",
    ),
)
