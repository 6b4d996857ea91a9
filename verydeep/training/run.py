"""One run in progress: set up, taken through its steps, logged, evaluated, saved, finished. Called by `loop`."""

import copy
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.config import RunConfig
from verydeep.data import Data, Split
from verydeep.data.seed import STEP, mix
from verydeep.data.seed import WEIGHTS as WEIGHT_DRAWS
from verydeep.errors import Diverged, RunError, UsageError, described
from verydeep.files import json_text
from verydeep.memory.system import peak_bytes, reset_peak
from verydeep.models.load import load_model
from verydeep.nn.freeze import freeze
from verydeep.nn.norm import convert_batch_norm, local_batch_norm
from verydeep.training.bad_step import locate
from verydeep.training.check_model import check_classifier
from verydeep.training.checkpoint import BEST, load_checkpoint, save_checkpoint
from verydeep.training.class_weight import make_class_weights
from verydeep.training.clock import Clock
from verydeep.training.compile import prepare_step
from verydeep.training.distributed import World
from verydeep.training.evaluate import Evaluation, evaluate
from verydeep.training.finetune import start_from
from verydeep.training.fit import make_fit, naming_memory
from verydeep.training.logger import Loggers, logger_names
from verydeep.training.mixup import make_mixup
from verydeep.training.observer import Observer
from verydeep.training.optimizer import load_optimizer
from verydeep.training.progress import FREE_TO_CHANGE, Progress
from verydeep.training.reporter import Reporter, SilentReporter, make_reporter
from verydeep.training.result import Result, command_line
from verydeep.training.rundir import BEST_WEIGHTS, RESULT, WEIGHTS, RunDirectory
from verydeep.training.schedule import lr_at
from verydeep.training.setup import StepBatches, Stream, check_early_stop, load_data_of, plan_of
from verydeep.training.signals import StopRequest
from verydeep.training.state import make_state
from verydeep.training.step import Step, train_step
from verydeep.versions import versions
from verydeep.weights import ModelCard, check_state, is_of_catalogue, save_weights


class Run:
    """A run, ready for the step that is next.

    Nothing is written before `carry_out`, so a config that cannot be carried out leaves nothing behind.

    Args:    config: resolved
             path: the run directory
             model, data: in place of the config's
             resumes: whether a checkpoint holds later weights than those to start from
             observer: reads the network now and then
             reporter: where the main process reports to; default: the terminal
    Raises:  UsageError: if the config cannot be carried out.
    """

    def __init__(
        self,
        config: RunConfig,
        path: Path,
        world: World,
        model: nn.Module | None = None,
        data: Data | None = None,
        *,
        resumes: bool = False,
        observer: Observer | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.config, self.path, self.world, self.observer = config, path, world, observer
        self.directory: RunDirectory | None = None
        self.logger_names = logger_names(config.logger)
        self.loggers: Loggers | None = None
        self.reporter = (reporter or make_reporter()) if world.is_main else SilentReporter()
        self.lines: list[dict[str, Any]] = []
        reset_peak(world.device)
        with world.main_first(), naming_memory(f"data {config.data}"):
            self.data = data or load_data_of(config)
        if self.data.train is None:
            raise UsageError(f"data {config.data}: no training images")
        self.train_split = self.data.train
        check_early_stop(config, self.data)
        torch.manual_seed(mix(WEIGHT_DRAWS, config.seed))
        if model is None:
            with naming_memory(f"model {config.model}"):
                model = load_model(
                    config.model,
                    num_classes=len(self.data.classes),
                    in_channels=self.data.channels,
                    image_size=self.data.image_size,
                    options=config.model_options(),
                )
        convert_batch_norm(model, group_size=config.bn_group_size, sync=config.sync_bn and world.size > 1)
        if config.finetune is not None and not resumes:
            self.reporter.say(start_from(model, config.finetune))
        if config.freeze is not None:
            freeze(model, [name.strip() for name in config.freeze.split(",")])
        shape = (self.data.channels, self.data.image_size, self.data.image_size)
        if not is_of_catalogue(model):
            check_classifier(model, config.model, shape, num_classes=len(self.data.classes), device=world.device)
        self.card = ModelCard.of(model, config.model, self.data)
        self.plan = plan_of(config, model, len(self.train_split), world)
        self.local_batch = -(-self.plan.largest_batch // world.size)
        self.memory_plan = make_fit(model, config, shape, batch_size=self.local_batch, world=world)
        self.state = make_state(model, config, world)
        mixup = make_mixup(config, len(self.data.classes))
        self.stream = Stream(self.train_split, self.plan, world, config.bn_group_size or 1, mixup)
        self._class_weights = make_class_weights(config, self.train_split.labels, len(self.data.classes), world.device)
        self.progress = Progress()
        self.identity = self.plan.identity() | {"classes": list(self.data.classes), "processes": world.size}
        self._last_test: tuple[int, Evaluation] | None = None
        self._step_function: Step = self._plain_step

    # Checkpoints

    def restore(self) -> None:
        """Take up the last checkpoint, if there is one."""
        with self.world.main_first():
            loaded = load_checkpoint(self.path / "checkpoints")
        if loaded is None:
            self.reporter.say(f"no checkpoint yet in {self.path}: starting at step 0")
            return
        values, fault = loaded
        try:
            self._take_up(values)
        except (UsageError, RunError):
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:  # nothing in it is certain
            raise RunError(f"checkpoint of {self.path}: is not as verydeep wrote it ({described(error)})") from error
        if fault is not None:
            self.reporter.say(f"{fault}; going on from the one before it, step {self.progress.step}")

    def _take_up(self, values: dict[str, Any]) -> None:
        """The state that a checkpoint holds, which must be of this run."""
        self.progress = Progress(**values["progress"])
        if not 0 <= self.progress.step <= self.plan.total_steps:
            raise ValueError(f"step {self.progress.step} of {self.plan.total_steps}")
        if values["spec"] != self.card.spec:
            raise UsageError(f"checkpoint of {self.path}: holds another network than its config.yaml declares")
        for name, own in self.config.to_dict().items():
            was = values["config"].get(name, own)
            if was != own and name not in FREE_TO_CHANGE:
                raise UsageError(
                    f"resume {self.path}: {name} was {was!r} until now, config.yaml says {own!r}; put it back"
                )
        for name, own in self.identity.items():
            was = values["identity"][name]
            if was != own:
                raise UsageError(f"resume {self.path}: {name} were {was}, now {own}; a resumed run needs the same")
        check_state(self.state.model, values["model"], source=f"checkpoint of {self.path}")
        self.state.model.load_state_dict(values["model"])
        load_optimizer(self.state.optimizer, values["optimizer"])
        if self.state.ema is not None:
            check_state(self.state.ema.model, values["ema"], source=f"checkpoint of {self.path}, ema")
            self.state.ema.model.load_state_dict(values["ema"])
        self.state.tally.sums.copy_(values["tally"])

    def save(self) -> None:
        """Write the checkpoint of this step."""
        if self.directory is not None:
            values = {
                "spec": self.card.spec,
                "identity": self.identity,
                "config": self.config.to_dict(),
                "progress": vars(self.progress),
                "model": self.state.model.state_dict(),
                "optimizer": self.state.optimizer.state_dict(),
                "ema": None if self.state.ema is None else self.state.ema.model.state_dict(),
                "tally": self.state.tally.sums,
            }
            save_checkpoint(self.path / "checkpoints", values)

    # The course of the run

    def carry_out(self, directory: RunDirectory | None) -> Result:
        """From the step that is next to the last, then the result.

        Args:    directory: held open by the main process; None in the others, and where nothing is to be kept on disk
        """
        self.directory = directory
        if directory is None:
            return self._carry_out()
        from_step = self.progress.step + 1 if self.progress.step else 0
        directory.start_logs(from_step=from_step)
        fields, say = self.config.to_dict(), self.reporter.say
        with Loggers(self.logger_names, self.path, fields, from_step=from_step, say=say) as self.loggers:
            return self._carry_out()

    def _carry_out(self) -> Result:
        if self.plan.note is not None:
            self.reporter.say(self.plan.note)
        if self.memory_plan is not None:
            self.reporter.say(str(self.memory_plan))
        self.reporter.start(done=self.progress.step, total=self.plan.total_steps)
        try:
            advice = f"batch_size {self.plan.batch_size}", self.plan.batch_size
            with torch.enable_grad(), StopRequest() as stop, naming_memory(*advice):
                stopped_by = self._train(stop)
                if stopped_by is not None:
                    values = {"steps": self.progress.step, "stopped_by": stopped_by, "model": self.config.model}
                    return Result(self.path, finished=False, values=values)
                return self._finish()
        finally:
            self.reporter.close()

    def _train(self, stop: StopRequest) -> str | None:
        """All steps that are left; the name of the signal that stopped the run, or None at its end."""
        clock = Clock(self.progress.seconds)
        self.prepare()
        if self.progress.step == 0:
            self._observe()
        clock.restart_lap()
        while not self._is_over():
            for batches in self.epoch_batches():
                self.take_step(batches)
                self.progress.step += 1
                logs = self._log_is_due()
                if logs:
                    self.world.average_(self.state.moving_buffers())
                    self._log(clock)
                if self._evaluation_is_due():
                    self._evaluate()
                    clock.restart_lap()
                self._observe()
                if logs or self.world.size == 1:  # processes agree on saving and stopping where they meet anyway
                    self.progress.seconds = clock.seconds()
                    stopped_by = self.world.first(stop.name)
                    if self.world.from_main(clock.since_save() >= self.config.checkpoint_seconds) or stopped_by:
                        self.save()
                        clock.saved()
                    if stopped_by is not None and not self._is_over():
                        return stopped_by
                if self._is_over():
                    break
        self.save()
        return None

    def epoch_batches(self) -> Iterator[StepBatches]:
        """The steps that are left of this epoch."""
        step = self.progress.step
        if self.plan.ends_epoch(step):
            self.progress.epoch_loss, self.progress.epoch_images = 0.0, 0
        return self.stream.rest_of_epoch(from_step=step)

    def prepare(self) -> None:
        """What is done once before the first step: compile it, where the config says so."""
        if self.config.compile:
            self._step_function = self._compiled_step()

    def take_step(self, batches: StepBatches, *, lr: float | None = None) -> None:
        """One optimizer step on these images, as the step that is next, at the schedule's rate if none is given."""
        step = self.progress.step
        self._seed(step)
        self._step_function(
            batches.batches,
            step=step,
            lr=lr_at(step, self.plan.total_steps, self.config) if lr is None else lr,
            num_images=batches.num_images,
            num_micro_batches=batches.num_micro_batches,
        )

    def _plain_step(self, micro_batches: Iterable[tuple[Tensor, Tensor]], **arguments: Any) -> None:
        train_step(
            self.state,
            micro_batches,
            **arguments,
            precision=self.config.precision,
            label_smoothing=self.config.label_smoothing or 0.0,
            class_weights=self._class_weights,
            clip_grad_norm=self.config.clip_grad_norm,
            clip_adaptive=self.config.clip_adaptive,
        )

    def _compiled_step(self) -> Step:
        shape = (self.data.channels, self.data.image_size, self.data.image_size)
        return prepare_step(
            self._plain_step, self.state, self.config, shape, batch_size=self.local_batch, say=self.reporter.say
        )

    def _seed(self, step: int) -> None:
        """Dropout and stochastic depth draw from a stream of their step and process."""
        torch.manual_seed(mix(STEP, self.config.seed, step, self.world.rank))

    # Logs

    def _log_is_due(self) -> bool:
        step = self.progress.step
        may_end = self._is_last() or (self.config.early_stop is not None and self._evaluation_is_due())
        return step % self.config.log_steps == 0 or self.plan.ends_epoch(step) or may_end

    def _log(self, clock: Clock) -> None:
        """Bring the tally to the host; write it; name and count bad steps.

        Raises:  RunError: if there were too many of them; the checkpoint holds the weights before the first.
        """
        sums = self.state.tally.sums.clone()
        sums[:3] = self.world.sum(sums[:3])
        self.state.tally.reset()
        loss, errors, images, bad_steps, first_bad, grad_norm = sums.tolist()
        progress = self.progress
        progress.epoch_loss += loss
        progress.epoch_images += int(images)
        progress.bad_steps += int(bad_steps)
        step = progress.step
        values = {
            "epoch": step / self.plan.steps_per_epoch,
            "loss": loss / images if images else None,
            "error_percent": 100 * errors / images if images else None,
            "lr": lr_at(step - 1, self.plan.total_steps, self.config),
            "grad_norm": grad_norm,
            "images_per_second": images / clock.lap(),
            "bad_steps": progress.bad_steps,
        }
        self._write("train", values)
        self.reporter.log(step, values)
        if bad_steps:
            self._report_bad_steps(int(bad_steps), int(first_bad) - 1)

    def _report_bad_steps(self, count: int, first: int) -> None:
        site = self._locate(first) or "not found again: the weights have moved since"
        self._write("bad", {"count": count, "first_step": first, "site": site})
        text = (
            f"{count} step(s) with a non-finite loss or gradient changed nothing; first at step {first}, site: {site}"
        )
        if self.progress.bad_steps < self.config.max_bad_steps:
            self.reporter.say(text)
            return
        self.save()
        raise Diverged(
            f"{text}; {self.progress.bad_steps} such steps in all, the run stops at {self.config.max_bad_steps} "
            f"(max_bad_steps). Weights are as after the last good step. Try a lower --lr, or --clip-grad-norm 1"
        )

    def _locate(self, step: int) -> str | None:
        """Where the step first met NaN or inf, with the weights of now."""
        self._seed(step)
        return self.world.first(locate(self.state, self.stream.of_step(step), precision=self.config.precision))

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        """One line of metrics: kept in `lines`, and written where there is a directory."""
        self.lines.append({"kind": kind, "step": self.progress.step} | values)
        if self.directory is not None and self.loggers is not None:
            self.directory.log(kind, self.progress.step, values)
            self.loggers.log(kind, self.progress.step, values)

    # Observation, evaluation and end

    def _observe(self) -> None:
        """Have the observer read the network, if it is due, and log what it says."""
        step, observer = self.progress.step, self.observer
        if observer is None or not observer.is_due(step, self.plan.total_steps):
            return
        index = torch.arange(min(observer.num_images, len(self.train_split)))
        (images, labels), *_ = self.train_split.batches([index], epoch=None, device=self.world.device)
        with local_batch_norm(self.state.model):
            values = observer.read(self.state.model, images, labels)
        self._write("observed", values)

    def _is_last(self) -> bool:
        return self.progress.step == self.plan.total_steps

    def _stops_early(self) -> bool:
        patience = self.config.early_stop
        return patience is not None and self.progress.stale_evaluations >= patience and not self._is_last()

    def _is_over(self) -> bool:
        return self._is_last() or self._stops_early()

    def _evaluation_is_due(self) -> bool:
        step, every = self.progress.step, self.config.eval_steps
        if every is not None:
            return self._is_last() or step % every == 0
        epochs = step // self.plan.steps_per_epoch
        return self._is_last() or (self.plan.ends_epoch(step) and epochs % self.config.eval_epochs == 0)

    def _evaluate(self) -> None:
        """Evaluate on the validation images, which choose the best weights; without any, on the test images."""
        name = "validation" if self.data.validation is not None else "test"
        evaluation = self._evaluation_on(name, self.state.final_model)
        if evaluation is None:
            return
        if name == "test":
            self._last_test = self.progress.step, evaluation
        self._write(name, evaluation.to_dict())
        epoch = self.progress.step / self.plan.steps_per_epoch
        error_percent, loss = evaluation.error_percent, evaluation.loss
        self.reporter.say(f"epoch {epoch:.4g}: {name} error {error_percent:.2f} %, loss {loss:.4f}")
        if not math.isfinite(loss):
            self.reporter.say(f"the {name} loss is not finite; these weights are never chosen as best")
        if name == "validation" and self.progress.validated(evaluation) and self.directory is not None:
            save_checkpoint(self.path / "checkpoints", {"model": self.state.final_model.state_dict()}, name=BEST)
        if self._stops_early():
            self.reporter.say(
                f"early stop at step {self.progress.step} of {self.plan.total_steps}: the validation error has not "
                f"fallen for {self.progress.stale_evaluations} evaluation(s)"
            )

    def _evaluation_on(self, name: str, model: nn.Module) -> Evaluation | None:
        split: Split | None = getattr(self.data, name)
        if split is None:
            return None
        return evaluate(model, split, world=self.world, precision=self.config.precision)

    def _finish(self) -> Result:
        """Evaluate on the test images, write weights and result."""
        if self._last_test is not None and self._last_test[0] == self.progress.step:
            test: Evaluation | None = self._last_test[1]
        else:
            test = self._evaluation_on("test", self.state.final_model)
        values: dict[str, Any] = {
            "test_error_percent": None if test is None else test.error_percent,
            "test_top5_error_percent": None if test is None else test.top5_error_percent,
            "test_loss": None if test is None else test.loss,
            "train_loss": self.progress.train_loss,
            "best": self._best_result(),
            "seconds": self.progress.seconds,
            "peak_memory_bytes": peak_bytes(self.world.device),
            "memory_plan": None if self.memory_plan is None else self.memory_plan.summary(),
            "steps": self.progress.step,
            "stopped_early": {"step": self.progress.step, "of": self.plan.total_steps} if self._stops_early() else None,
            "bad_steps": self.progress.bad_steps,
            "num_parameters": sum(parameter.numel() for parameter in self.state.model.parameters()),
            "model": self.config.model,
            "data": self.config.data,
            "seed": self.config.seed,
            "device": str(self.world.device),
            "processes": self.world.size,
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "command": command_line(),
        }
        if self.directory is not None:
            save_weights(self.path / WEIGHTS, self.state.final_model, self.card)
            self.directory.write(RESULT, json_text(values, indent=2) + "\n")
        return Result(self.path, finished=True, values=values)

    def _best_result(self) -> dict[str, Any] | None:
        """The weights that the validation images chose, on the test images."""
        best = self.progress.best
        if best is None:
            return None
        model = copy.deepcopy(self.state.final_model)
        try:
            loaded = load_checkpoint(self.path / "checkpoints", name=BEST)
            fault = f"checkpoint {self.path / 'checkpoints' / BEST}: is not there"
        except RunError as error:
            loaded, fault = None, str(error)
        test = None
        if loaded is None:
            self.reporter.say(f"{fault}; the best weights are not evaluated")
        else:
            model.load_state_dict(loaded[0]["model"])
            test = self._evaluation_on("test", model)
            if self.directory is not None:
                save_weights(self.path / BEST_WEIGHTS, model, self.card)
        return {
            "step": best["step"],
            "validation_error_percent": best["error_percent"],
            "test_error_percent": None if test is None else test.error_percent,
        }
