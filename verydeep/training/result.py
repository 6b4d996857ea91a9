"""What a run ends with: `Result`, written as result.json, and the summary that a user reads."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Args:    directory: the run directory
             finished: False if the run was stopped before its last step; then `values` holds the steps done
             values: the contents of result.json: `test_error_percent` (top-1 of the last iterate, 0-100; None without
                 test images), `train_loss` (mean over the last epoch, or what there was of it), `seconds`,
                 `peak_memory_bytes`, `steps`, `stopped_early` (None, or the step and of how many), ...
    """

    directory: Path
    finished: bool
    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"directory": str(self.directory), "finished": self.finished} | self.values

    def summary(self) -> str:
        """Test error, time, memory, where the run is, the next thing to try; or how to go on."""
        if not self.finished:
            return (
                f"stopped by {self.values['stopped_by']} after {self.values['steps']} steps; everything is saved\n"
                f"go on    verydeep train --resume {shlex.quote(str(self.directory))}{_own_model(self.values)}"
            )
        rows = [
            ("test error", _percent(self.values["test_error_percent"])),
            ("train loss", f"{self.values['train_loss']:.4f}" if self.values["train_loss"] is not None else "none"),
            ("time", f"{self.values['seconds']:.1f} s for {self.values['steps']} steps"),
            ("peak memory", f"{self.values['peak_memory_bytes'] / 1e9:.2f} GB"),
            ("parameters", f"{self.values['num_parameters']:,}"),
            ("run", str(self.directory)),
            ("next", _next_step(self.values, self.directory)),
        ]
        if self.values.get("best") is not None:
            best = self.values["best"]
            text = (
                f"{_percent(best['test_error_percent'])} test, {_percent(best['validation_error_percent'])} validation"
            )
            rows.insert(1, ("best", f"{text}, at step {best['step']}"))
        if self.values.get("stopped_early") is not None:
            rows.insert(0, ("early stop", "at step {step} of {of}".format_map(self.values["stopped_early"])))
        return "\n".join(f"{name:<12} {text}" for name, text in rows)


def command_line() -> str:
    """The command of this process, as one would type it."""
    program = Path(sys.argv[0]).name
    return shlex.join(["verydeep" if program == "__main__.py" else program, *sys.argv[1:]])


def _percent(value: float | None) -> str:
    return "no test images" if value is None else f"{value:.2f} %"


def _next_step(values: dict[str, Any], directory: Path) -> str:
    """A command worth trying after this run."""
    if values.get("stopped_early") is not None and values["best"] is not None:
        return f"verydeep evaluate {shlex.quote(str(directory))} --weights best{_own_model(values)}"
    if values["data"] == "digits" and values["model"].startswith("preact_"):
        plain = values["model"].replace("preact_resnet", "plain")
        return f"verydeep train --model {plain}   (the same depth without shortcuts)"
    if values["test_error_percent"] is None:
        return f"verydeep predict {shlex.quote(str(directory))} IMAGE{_own_model(values)}"
    return f"verydeep evaluate {shlex.quote(str(directory))}{_own_model(values)}"


def _own_model(values: dict[str, Any]) -> str:
    """The flag that a command needs where the network is the user's own code, which a run never names."""
    return f" --model {shlex.quote(values['model'])}" if ".py:" in values["model"] else ""
