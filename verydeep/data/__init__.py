"""Data sets by name, and batches made on the device: the pipeline between files on disk and the training step.

`load_data` is the entry; training and evaluation see only `Data`, `Split` and `epoch_order`, prediction `eval_image`.
"""

from verydeep.data.data import Data
from verydeep.data.files import FileSplit
from verydeep.data.image import eval_image, read_image
from verydeep.data.load import load_data
from verydeep.data.resident import ResidentSplit
from verydeep.data.seed import epoch_order
from verydeep.data.split import Split

__all__ = ["Data", "FileSplit", "ResidentSplit", "Split", "epoch_order", "eval_image", "load_data", "read_image"]
