"""Random draws as functions of integers alone: (seed, epoch), or (seed, epoch, sample index).

Nothing here reads or moves a global generator, so order and augmentation do not depend on how many processes share
the work, nor on where a run was resumed. The splits, the hold-outs and the training loop call it.
"""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1

# The first integer of each mix: draws for different uses are unrelated, even at equal seed and epoch.
ORDER, AUGMENTATION, HOLD_OUT, WEIGHTS, STEP, SUBSET, MIXUP = range(7)


def mix(*values: int) -> int:
    """One well-mixed 64-bit integer from several: neighbours in any of them give unrelated results.

    Source:  Steele, Lea, Flood 2014, SplitMix64 (its increment and finaliser, chained over the values)

    >>> mix(0, 1) == mix(0, 1), mix(0, 1) == mix(1, 0)
    (True, False)
    """
    state = 0
    for value in values:
        state = ((state ^ (value & _MASK)) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def generator(*values: int) -> torch.Generator:
    """A CPU generator whose stream is a function of the integers given."""
    return torch.Generator().manual_seed(mix(*values))


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> Tensor:
    """The permutation of an epoch: the order in which its samples are seen.

    Args:    num_samples: size of the training set
             seed, epoch: what the permutation is a function of, together with the size
    Returns: int64 (num_samples,), on the CPU

    >>> sorted(epoch_order(4, seed=0, epoch=1).tolist())
    [0, 1, 2, 3]
    """
    return torch.randperm(num_samples, generator=generator(ORDER, seed, epoch))
