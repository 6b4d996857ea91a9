"""The command line: one function per verb, and `main`, which turns what they raise into one line and an exit code.

Heavy imports stand inside the verbs, so that `verydeep --help` is instant.
"""

import io
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verydeep import __version__
from verydeep.config import RunConfig
from verydeep.errors import RunError, UsageError, is_out_of_memory, nearest, resolve
from verydeep.files import json_text, write_whole
from verydeep.flags import Flag, config_flags, parse, run_config
from verydeep.output import Steps, check_new, check_writable, csv_text, print_table, write_json


def train(arguments: dict[str, Any]) -> None:
    """Train a network by a declared protocol, or resume a run."""
    path, directory, json_file = (arguments.pop(name) for name in ("config", "resume", "json"))
    finds_lr, steps, page = (arguments.pop(name) for name in ("find_lr", "find_lr_steps", "find_lr_page"))
    del arguments["debug"]
    config, explicit = run_config(arguments, path)
    if finds_lr:
        if directory is not None:
            raise UsageError("argument --find-lr: not with --resume; a resumed run keeps its lr")
        _find_lr(config, arguments, path, steps=steps, page=page, json_file=json_file)
        return
    for name, value in (("find_lr_steps", steps), ("find_lr_page", page)):
        if value is not None:
            raise UsageError(f"argument --{name.replace('_', '-')} {value}: needs --find-lr")

    from verydeep.training.loop import resume
    from verydeep.training.loop import train as run

    result = run(config) if directory is None else resume(directory, explicit)
    if not _speaks():
        return
    print(result.summary())
    write_json(json_file, result.to_dict())


def _speaks() -> bool:
    """Under torchrun the first process speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def _find_lr(
    config: RunConfig,
    given: dict[str, Any],
    path: str | None,
    *,
    steps: int | None,
    page: str | None,
    json_file: str | None,
) -> None:
    """The range test before a training, and the command of the training that it suggests."""
    check_writable("--find-lr-page", page, PAGES, makes_folder=True)

    from verydeep.training.find_lr import find_lr

    curve = find_lr(config) if steps is None else find_lr(config, steps=steps)
    if not _speaks():
        return
    write_json(json_file, curve.to_dict())
    if page is not None:
        curve.to_html(page)
        print(page)
    if curve.suggested_lr is None:
        raise RunError(f"{curve.summary()}; verydeep diagnose says why a network does not train")
    print(curve.summary())
    print(f"train with  {_train_command(given | {'lr': curve.suggested_lr}, path)}")


def evaluate(arguments: dict[str, Any]) -> None:
    """Measure a trained run on the test set, each image once."""
    from verydeep.saved import evaluate_run

    measured = evaluate_run(
        arguments["run"],
        data=arguments["data"],
        device=arguments["device"],
        batch_size=arguments["batch_size"],
        image_size=arguments["image_size"],
        resize=arguments["resize"],
        model=arguments["model"],
        weights=arguments["weights"],
    )
    print_table(["quantity", "value"], measured.items())
    write_json(arguments["json"], measured)


def predict(arguments: dict[str, Any]) -> None:
    """Name the likeliest classes of images."""
    check_new("--out", arguments["out"], (".csv", ".json"))

    from verydeep.predict import predict as classify

    predictions = classify(
        arguments["run"],
        arguments["images"],
        top=arguments["top"],
        batch_size=arguments["batch_size"],
        device=arguments["device"],
        model=arguments["model"],
        weights=arguments["weights"],
    )
    rows = [[one.path, *_prediction_cells(one)] for one in predictions]
    ranks = max((len(row) for row in rows), default=2)
    print_table(["image", *map(str, range(1, ranks))], rows)
    records = [{"path": one.path, "classes": one.classes, "error": one.error} for one in predictions]
    values = {"run": arguments["run"], "predictions": records}
    write_json(arguments["json"], values)
    if arguments["out"] is not None:
        as_csv = arguments["out"].lower().endswith(".csv")
        content = _predictions_csv(predictions) if as_csv else json_text(values, indent=2) + "\n"
        write_whole(Path(arguments["out"]), content.encode(errors="surrogateescape"))  # a file name may be any bytes
    failed = [str(one.path) for one in predictions if one.error is not None]
    if failed:
        raise RunError(f"{len(failed)} of {len(predictions)} images could not be read: {', '.join(failed)}")


def recalibrate(arguments: dict[str, Any]) -> None:
    """Compute a run's batch-norm statistics on its training images."""
    from verydeep.recalibrate import recalibrate_run

    measured = recalibrate_run(
        arguments["run"],
        data=arguments["data"],
        num_images=arguments["images"],
        batch_size=arguments["batch_size"],
        device=arguments["device"],
        model=arguments["model"],
        weights=arguments["weights"],
    )
    print_table(["quantity", "value"], measured.items())
    write_json(arguments["json"], measured)


def models(arguments: dict[str, Any]) -> None:
    """List the networks that a pattern matches, with their sizes."""
    from verydeep.models.catalogue import describe, list_models

    pattern = arguments["pattern"]
    names = list_models(pattern)
    if not names and any(character in pattern for character in "*?["):
        raise UsageError(f"argument PATTERN {pattern!r}: no such model; nearest: {_nearest_models(pattern)}")
    rows = [describe(name) for name in names or [pattern]]  # a legal name resolves even if it is not listed
    print_table(list(rows[0]), [row.values() for row in rows])
    write_json(arguments["json"], {"models": rows})


def export(arguments: dict[str, Any]) -> None:
    """Write a trained network to a file that other programs read."""
    from verydeep.export import export_run

    written = export_run(
        arguments["run"],
        format=arguments["format"],
        out=arguments["out"],
        weights=arguments["weights"],
        fold=arguments["fold"],
        opset=arguments["opset"],
        model=arguments["model"],
    )
    print_table(["quantity", "value"], written.items())
    write_json(arguments["json"], written)


def diagnose(arguments: dict[str, Any]) -> None:
    """Say why a deep network does not train: the layer at fault, the evidence, what to change."""
    fail_on, out, json_file = (arguments.pop(name) for name in ("fail_on", "out", "json"))
    del arguments["debug"]
    if fail_on not in (None, "error", "warning"):
        raise UsageError(f"argument --fail-on {fail_on!r}: must be error or warning")
    check_writable("--out", out, PAGES, makes_folder=True)

    from verydeep.analysis.named import diagnose_named

    diagnosis = diagnose_named(arguments.pop("model"), **arguments)
    print(diagnosis)
    if out is not None:
        diagnosis.to_html(out)
        print(out)
    write_json(json_file, diagnosis.to_dict())
    grave = ("error",) if fail_on == "error" else ("error", "warning")
    found = [f"{finding.rule} at {finding.site}" for finding in diagnosis.findings if finding.severity in grave]
    if fail_on and found:
        raise RunError(f"{len(found)} findings of severity {' or '.join(grave)}: {', '.join(found)}")


def reproduce(arguments: dict[str, Any]) -> None:
    """Measure a source's claims again, the published value beside each."""
    from verydeep.experiments.engine import engine_by_name
    from verydeep.experiments.reproduce import reproduce as measure
    from verydeep.training.result import command_line

    only = [entry.strip() for entry in (arguments["only"] or "").split(",") if entry.strip()]
    with Steps() as steps:
        measured = measure(
            arguments["name"],
            only=only,
            scale=arguments["scale"],
            data=arguments["data"],
            image_size=arguments["image_size"],
            max_images=arguments["max_images"],
            seeds=arguments["seeds"],
            out=arguments["out"],
            engine=engine_by_name(arguments["engine"], arguments["processes"], arguments["address"]),
            command=command_line(),
            report=steps.report,
        )
    cells = [cell for cell in measured.values["cells"] if cell["verdict"] != "not run"]
    rows = [[cell["id"], _published_cell(cell), _measured_cell(cell), cell["n"], cell["verdict"]] for cell in cells]
    print_table(["id", "published", "measured", "n", "verdict"], rows)
    print(f"{', '.join(f'{count} {verdict}' for verdict, count in measured.counts().items())}; {measured.path}")
    write_json(arguments["json"], measured.values)


def report(arguments: dict[str, Any]) -> None:
    """Make the page of runs and reproductions."""
    from verydeep.experiments.page import write_page

    check_writable("--out", arguments["out"], PAGES, makes_folder=True)
    out = Path(arguments["out"])
    write_page([Path(directory) for directory in arguments["directories"]], out)
    print(out)
    write_json(arguments["json"], {"page": out})


def bench(arguments: dict[str, Any]) -> None:
    """Time a network's training step on this machine, beside its convolutions alone."""
    path, json_file, rounds = (arguments.pop(name) for name in ("config", "json", "rounds"))
    del arguments["debug"]
    config, _ = run_config(arguments, path)

    from verydeep.bench import bench as measure
    from verydeep.training.reporter import PlainReporter

    measured = measure(config, rounds=rounds, reporter=PlainReporter()).to_dict()
    print_table(
        ["quantity", "value"], [(name, value) for name, value in measured.items() if not isinstance(value, dict)]
    )
    write_json(json_file, measured)


PAGES = (".html", ".htm")


class Verb(NamedTuple):
    """A function of the parsed arguments, and its flags by group of the help."""

    function: Callable[[dict[str, Any]], None]
    flags: dict[str, list[Flag]]


RUN = Flag("run", str, "run directory that `verydeep train` wrote", positional=True)
OWN_MODEL = Flag("model", str | None, "FILE.py:FUNCTION of a run of your own network, whose code the run does not name")
WHICH_WEIGHTS = Flag(
    "weights",
    str,
    "last; best: those that the validation images chose; recalibrated: those of verydeep recalibrate; default: last",
    "last",
)
DEVICE = Flag("device", str, "auto, cpu, cuda, cuda:N; default: auto", "auto")
COMMON = [
    Flag("json", str | None, "write what was measured to this file as JSON", metavar="FILE"),
    Flag("debug", bool, "show the traceback of an error", False, switch=True),
]
FILE_AND_RESUME = [
    Flag("config", str | None, "YAML file of the fields above; flags win", metavar="FILE"),
    Flag("resume", str | None, "continue this run where it stopped; it keeps its settings", metavar="DIR"),
]
FIND_LR = [
    Flag("find_lr", bool, "in place of training: raise lr step by step, suggest one, keep nothing", False, switch=True),
    Flag("find_lr_steps", int | None, "steps of this test, at least 20; default: 100", least=20),
    Flag("find_lr_page", str | None, "page with its curve; --json FILE has the numbers", metavar="FILE"),
]
EVALUATE = [
    RUN,
    WHICH_WEIGHTS,
    OWN_MODEL,
    Flag(
        "data",
        str | None,
        "digits, cifar10, cifar100, folder:DIR, parquet:DIR, csv:FILE, hub:NAME; default: the run's own",
    ),
    DEVICE,
    Flag("batch_size", int | None, "images at a time; default: 256", least=1),
    Flag("image_size", int | None, "resize every image to this many pixels a side; default: the run's own", least=1),
    Flag(
        "resize",
        int | None,
        "shorter side of an image file before its central crop to image_size; default: 256 for 224, in proportion",
        least=1,
    ),
]
PREDICT = [
    RUN,
    Flag(
        "images", str, "image files, directories of them, or quoted patterns as '**/*.png'", nargs="+", positional=True
    ),
    WHICH_WEIGHTS,
    OWN_MODEL,
    Flag("top", int, "classes named for each image; default: 5", 5, least=1),
    Flag("batch_size", int, "images at a time; default: 64", 64, least=1),
    Flag("out", str | None, "write the predictions to this new file too", metavar="FILE.csv|FILE.json"),
    DEVICE,
]
RECALIBRATE = [
    RUN,
    Flag("data", str | None, "where the training images are, as for train; default: the run's own"),
    Flag("images", int | None, "training images, drawn by the run's seed; default: all", metavar="N", least=2),
    Flag("batch_size", int | None, "images that a statistic is of; default: the run's own", least=2),
    Flag("weights", str, "last or best, whose statistics are replaced; default: last", "last"),
    OWN_MODEL,
    DEVICE,
]
MODELS = [Flag("pattern", str, "name, or pattern with * and ?; default: all", "*", nargs="?", positional=True)]
EXPORT = [
    RUN,
    Flag("format", str, "safetensors (weights) or onnx (the computation)", metavar="NAME", required=True),
    Flag("out", str, "file to write", metavar="FILE", required=True),
    WHICH_WEIGHTS,
    OWN_MODEL,
    Flag("fold", bool, "onnx: batch norms folded into the convolutions before them", False, switch=True),
    Flag("opset", int | None, "onnx: version of its operators; default: 18"),
]
REPRODUCE = [
    Flag(
        "name", str, "chapter; of He et al. 2016: table1 to table5, fig1, fig3, fig6, degradation, ...", positional=True
    ),
    Flag("only", str | None, "kinds (exact, stochastic, trained) or names, separated by commas", metavar="NAME,..."),
    Flag("scale", str, "small (minutes) or paper (the sources' own sizes); default: small", "small"),
    Flag("data", str | None, "of what is trained, as for train; default: digits (at scale paper: cifar10)"),
    Flag("image_size", int | None, "resize its images to N x N; default: their own size", metavar="N", least=1),
    Flag("max_images", int | None, "of each split, so many images at most; default: all", least=1),
    Flag("seeds", int | None, "seeds of what is trained; default: 1 (at scale paper: 5)", least=1),
    Flag(
        "out", str | None, "directory of results, where what is done is kept; default: reproduced/ and the work's name"
    ),
    Flag("engine", str, "local, processes of this machine; or ray, a cluster; default: local", "local"),
    Flag("processes", int | None, "local: trials at once; default: one a GPU, else a core, as memory holds", least=1),
    Flag("address", str | None, "ray: of the cluster; default: that of RAY_ADDRESS, else one started here"),
]
DIAGNOSE = [
    Flag("model", str, "NAME, timm:NAME, torchvision:NAME or FILE.py:FUNCTION", required=True),
    Flag("data", str, "of which the first batch is taken, as for train; default: digits", "digits"),
    Flag("data_root", str, "folder of data sets by name; default: data", "data"),
    Flag(
        "image_size",
        int | None,
        "resize images to N x N; default: the network's or the data's own",
        metavar="N",
        least=1,
    ),
    Flag("batch_size", int, "images; default: 16", 16, least=1),
    Flag("steps", int, "training steps on this batch, to see whether its loss falls; default: 0", 0, least=0),
    Flag("lr", float | None, "learning rate of those steps, SGD with momentum 0.9; default: Adam's 0.001"),
    Flag("seed", int, "of initialisation and batch; default: 0", 0, least=0),
    Flag("device", str, "cpu, cuda, cuda:N; default: cpu", "cpu"),
    Flag("out", str | None, "page to write; its figures go beside it", metavar="FILE"),
    Flag("fail_on", str | None, "exit with 1 at findings as grave as this", metavar="error|warning"),
]
BENCH = [
    Flag("rounds", int, "steps timed after one of warm-up; default: 5", 5, least=1),
    Flag("config", str | None, "YAML file of fields, as for train; flags win over it", metavar="FILE"),
]
REPORT = [
    Flag("directories", str, "directories of runs and of reproductions", nargs="+", positional=True),
    Flag("out", str, "page to write; its figures go beside it; default: page.html", "page.html", metavar="FILE"),
]

VERBS = {
    "train": Verb(train, config_flags() | {"learning-rate test": FIND_LR, "file and resume": FILE_AND_RESUME + COMMON}),
    "evaluate": Verb(evaluate, {"arguments": EVALUATE + COMMON}),
    "predict": Verb(predict, {"arguments": PREDICT + COMMON}),
    "diagnose": Verb(diagnose, {"arguments": DIAGNOSE + COMMON}),
    "recalibrate": Verb(recalibrate, {"arguments": RECALIBRATE + COMMON}),
    "reproduce": Verb(reproduce, {"arguments": REPRODUCE + COMMON}),
    "bench": Verb(bench, config_flags() | {"measuring": BENCH + COMMON}),
    "report": Verb(report, {"arguments": REPORT + COMMON}),
    "models": Verb(models, {"arguments": MODELS + COMMON}),
    "export": Verb(export, {"arguments": EXPORT + COMMON}),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that `argv` names; without `argv`, the process's own arguments.

    Returns: 0 success, 1 a stated failure, 2 bad usage, 130 interrupted
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    warnings.filterwarnings("ignore", module="PIL")  # doubts about an image that is then read, or refused
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for the life of the process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # any file name can be printed
    try:
        _run(argv)
        sys.stdout.flush()
        return 0
    except SystemExit as stop:  # --help; or the user's own FILE.py gave up
        return stop.code if isinstance(stop.code, int) else _fail(f"SystemExit: {stop.code}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # the boundary: whatever it is, one line
        if "--debug" in argv:
            traceback.print_exc()
        return _fail(*_stated(error))


def _stated(error: Exception) -> tuple[str, int]:
    """An exception as a message and an exit code."""
    match error:
        case UsageError():
            return str(error), 2
        case RunError():
            return str(error), 1
        case _ if is_out_of_memory(error):
            return "out of memory: smaller images, batches or networks need less", 1
        case OSError(strerror=str(problem)):
            return f"{error.filename}: {problem}" if error.filename else problem, 1
        case _:
            return f"internal error: {type(error).__name__}: {error}; --debug shows where", 1


def _fail(message: str, code: int) -> int:
    # Line breaks and terminal codes in a name are shown, not obeyed.
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message.strip())
    print(f"verydeep: error: {safe}", file=sys.stderr)
    return code


def _run(argv: list[str]) -> None:
    if not argv:
        raise UsageError(f"argument VERB: required; one of {', '.join(VERBS)}")
    if argv[0] in ("-h", "--help"):
        print(_overview())
        return
    if argv[0] == "--version":
        print(f"verydeep {__version__}")
        return
    verb = resolve("argument VERB", argv[0], VERBS)
    arguments = parse(argv[0], verb.function.__doc__ or "", verb.flags, argv[1:])
    check_writable("--json", arguments["json"])
    verb.function(arguments)


def _overview() -> str:
    lines = [f"  {name:<10} {verb.function.__doc__}" for name, verb in VERBS.items()]
    return "\n".join(["usage: verydeep VERB [flags]", "", "verbs (VERB --help lists its flags):", *lines])


def _train_command(given: dict[str, Any], path: str | None) -> str:
    """The command that trains by these flags, over a file of fields."""
    parts = ["verydeep", "train", *(["--config", path] if path else [])]
    for name, value in given.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        parts += ["--" + name.replace("_", "-"), text.lower() if value is None or isinstance(value, bool) else text]
    return shlex.join(parts)


def _published_cell(cell: dict[str, Any]) -> Any:
    """What was published; a median with its mean and deviation as people write it."""
    from verydeep.report.number import value_text

    return value_text(cell["published"]) if isinstance(cell["published"], dict) else cell["published"]


def _measured_cell(cell: dict[str, Any]) -> Any:
    """The median; of what has none, the value itself."""
    return cell["measured"][0] if cell["median"] is None else cell["median"]


def _prediction_cells(prediction: Any) -> list[str]:
    if prediction.error is not None:
        return [f"error: {prediction.error}"]
    return [f"{name} {probability:.1%}" for name, probability in prediction.classes]


def _predictions_csv(predictions: Sequence[Any]) -> str:
    """A row for each image: path, error, then name and probability of each class, likeliest first."""
    ranks = max((len(one.classes) for one in predictions if one.classes), default=0)
    columns = [f"{what}_{rank}" for rank in range(1, ranks + 1) for what in ("class", "probability")]
    rows = [
        [one.path, one.error, *(cell for pair in one.classes or [] for cell in pair)]
        + [None] * (0 if one.classes else 2 * ranks)
        for one in predictions
    ]
    return csv_text(["path", "error", *columns], rows)


def _nearest_models(pattern: str) -> str:
    from verydeep.models.catalogue import list_models

    return ", ".join(nearest(pattern.strip("*?"), list_models("*")))
