"""PARTS: what `reproduce` knows of the paper by name, each a table, a figure or a statement, made an `Experiment`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verydeep.experiments.experiment import Claim, Experiment, Results, Setting, Verdict
from verydeep.experiments.he2016.cell import FAIL, Cell
from verydeep.experiments.he2016.charts import charts_of
from verydeep.experiments.he2016.network import NETWORKS, name_at
from verydeep.experiments.he2016.rank import rank_cells
from verydeep.experiments.he2016.setting import training
from verydeep.experiments.he2016.small import BUDGET, SETTINGS
from verydeep.experiments.he2016.tables import IMAGENET_SHORTCUTS, TABLE1, TABLE2, TABLE3, TABLE4, TABLE5
from verydeep.experiments.he2016.text import DEGRADATION, FIG1, FIG3, FIG6, FORWARD_SIGNAL, GATES, PROJECTIONS, WARMUP
from verydeep.experiments.training import Training


@dataclass(frozen=True)
class Part:
    """A table, a figure or a statement of the paper.

    Args:    title: one line
             section: of the paper
             cells: its entries
             text: what the paper says of it
             cost: of `--scale paper`, five seeds
             small_only: whether it is about the small scale, and not run at the paper's
             ranked: whether the order of its errors is compared with the published order
    """

    title: str
    section: str
    cells: Sequence[Cell]
    text: str
    cost: str
    ranked: bool = False
    small_only: bool = False

    @property
    def networks(self) -> list[str]:
        """Every network that a cell needs, once."""
        own = [name for cell in self.cells for name in cell.networks]
        return list(dict.fromkeys([*own, *(name for cell in self.all_cells for name in cell.needed)]))

    @property
    def all_cells(self) -> list[Cell]:
        return [*self.cells, *(rank_cells(self.cells) if self.ranked else [])]


CIFAR_COST = (
    "a 110-layer network of 64,000 steps takes about 3 hours on one GPU of today, 1,001 layers ten times as long"
)
IMAGENET_COST = "ResNet-200 took about 3 weeks on 8 GPUs in 2016; see docs/imagenet.md"

PARTS: dict[str, Part] = {
    "table1": Part(
        "Shortcuts: what stands on them, 110 layers", "3.1", TABLE1,
        "All 54 units have the shortcut named. The paper prints fail for a test error above 20 %.",
        CIFAR_COST, ranked=True,
    ),
    "table2": Part(
        "Where norm and activation stand, 110 and 164 layers", "4.1", TABLE2,
        "Only the order within the unit differs.", CIFAR_COST, ranked=True,
    ),
    "table3": Part(
        "Original units against full pre-activation", "4.1", TABLE3,
        "One, two and three layers a unit, 110 to 1,001 layers.", CIFAR_COST, ranked=True,
    ),
    "table4": Part(
        "Beside methods of others", "5", TABLE4,
        "Methods of others are quoted by the paper and not run. In batches of 64 the network sees as many images as "
        "the others; the released code goes on for 200 epochs.", CIFAR_COST,
    ),
    "table5": Part(
        "ImageNet, single crop", "5", TABLE5, "Trained at 224x224; tested at 224x224 of shorter side 256, and "
        "fully convolutionally at 320x320 of shorter side 320.", IMAGENET_COST,
    ),
    "fig1": Part(
        "1,001 layers: courses of training", "1 and 4.2", FIG1,
        "With original units the training loss falls very slowly at first; with pre-activation it falls at once.",
        CIFAR_COST,
    ),
    "fig3": Part(
        "Courses of training by shortcut", "3.1", FIG3,
        "Each shortcut that is not the identity ends with a higher training loss, though gates and convolutions could "
        "become the identity: optimisation, not capacity.", CIFAR_COST,
    ),
    "fig6": Part(
        "Courses of training: batch norm after the addition; pre-activation", "4.1 and 4.2", FIG6,
        "Batch norm after the addition impedes the start. Pre-activation ends with a slightly higher training loss and "
        "a lower test error.", CIFAR_COST,
    ),
    "degradation": Part(
        "Degradation of plain networks", "1", DEGRADATION,
        "What residual networks were made for: a deeper plain network trains worse.", CIFAR_COST,
    ),
    "gate-bias": Part(
        "The search for the gate's bias", "3.1", GATES,
        "Biases 0 to -10 are tried with training images held out; the chosen one is trained on all of them.",
        CIFAR_COST,
    ),
    "conv1x1-depth": Part(
        "1x1 convolutions on shortcuts by depth", "3.1", PROJECTIONS,
        "Option C of the first paper was good at 34 layers. CIFAR networks have 6n + 2 layers; 32 is the nearest.",
        CIFAR_COST,
    ),
    "forward-signal": Part(
        "The forward signal when branches are not negative", "4.1", FORWARD_SIGNAL,
        "A branch that ends in a ReLU can only add, so the signal rises monotonically.", CIFAR_COST,
    ),
    "warmup": Part(
        "The warm-up", "appendix", WARMUP,
        "0.01 for 400 steps before 0.1; at the small scale the rise of the one-cycle course.", CIFAR_COST,
    ),
    "budget": Part(
        "The small scale itself: the paper's order by budget", "3.1", BUDGET,
        "A short training is not a long one made cheap: which differences it shows depends on its length. The gate's "
        "branches begin near zero, which helps most at the start.", CIFAR_COST,
        small_only=True,
    ),
    "settings": Part(
        "The small scale itself: what the settings matter that differ from the paper's", "3.1", SETTINGS,
        "Each setting of the paper put back alone, for the original unit and the exclusive gate at -6; compare with "
        "table1.", CIFAR_COST, small_only=True,
    ),
    "imagenet-shortcuts": Part(
        "Other shortcuts and batch norm after the addition on ImageNet, 101 layers", "5", IMAGENET_SHORTCUTS,
        "The paper saw the same difficulties and stopped the other shortcuts' trainings; here they end after the 30 "
        "epochs of the first learning rate.", IMAGENET_COST,
    ),
}  # fmt: skip


def load(name: str) -> tuple[list[Experiment], list[Claim]]:
    """A part as experiment and claims."""
    part = PARTS[name]
    cells = part.all_cells
    experiment = Experiment(
        name,
        "trained",
        part.title,
        trials=lambda setting: trials_of(part, setting),
        judge=lambda results, setting: judge(part, results, setting),
        charts=lambda results: charts_of(name, results),
        settings=settings_of(part),
        claims=tuple(cell.id for cell in cells),
        text=part.text,
    )
    claims = [
        Claim(cell.id, "trained", part.section, cell.what, cell.published, unit=_unit(cell.number)) for cell in cells
    ]
    return [experiment], claims


def _unit(published: Any) -> str:
    return "%" if isinstance(published, float) or published == FAIL else ""


def trials_of(part: Part, setting: Setting) -> list[Training]:
    """The trainings of a part; of ImageNet's networks only where a folder of images is named."""
    if part.small_only and setting.scale != "small":
        return []
    named = setting.data.startswith("folder:")
    names = dict.fromkeys(name_at(setting.scale, name) for name in part.networks)
    return [training(name, setting) for name in names if NETWORKS[name].data != "imagenet" or named]


def judge(part: Part, results: Results, setting: Setting) -> dict[str, Verdict]:
    trials = {name: name_at(setting.scale, name) for name in part.networks}
    known = {name: results[trial] for name, trial in trials.items() if trial in results}
    return {cell.id: cell.judge(known, setting) for cell in part.all_cells}


def settings_of(part: Part) -> str:
    """What the scales differ in; of the small scale itself, its entries say what they change of it."""
    if part.small_only:
        return "each entry says in what it differs from the small scale's usual settings"
    small = (
        "width 16, 64x64 images, batches of 16, 20 steps"
        if any(NETWORKS[name].data == "imagenet" for name in part.networks)
        else "width 8, images at 16x16 (digits at 8x8), batches of 64, 1,000 steps of one-cycle SGD at 0.05 (500 steps "
        "of a thousand layers and more, and in the search for the gate's bias)"
    )
    return (
        "at the paper's scale the protocol of its appendix, last iterate, median of the seeds; at the small scale "
        f"{small}; cost at the paper's scale: {part.cost}"
    )
