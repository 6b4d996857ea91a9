"""The loops over rows of a feature map that `compiled.py` makes kernels of: compiled by numba, run by one thread.

Rows of few channels are taken several at once, so that the inner loops are long: a block is (rows // step, step C).
numba's cache looks at `compiled.py` alone: after a change here, touch that file.
"""

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from verydeep.nn.product import LANES

CHUNK = 64  # rows of a block whose sums are kept in the map's own precision before they join the sums in float64
NONE, FROM_INPUT, FROM_OUTPUT = 0, 1, 2  # what tells where the ReLU gave 0: there is no ReLU, x again, its output


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """An integer as an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), generate


@njit
def flat(address, size, dtype):
    return carray(pointer(address), size, dtype)


@njit
def part(part, parts, rows, repeat):
    """First and last row of a part: whole groups of `repeat` rows, and in the last part what is left over."""
    groups = rows // repeat
    stop = rows if part == parts - 1 else groups * (part + 1) // parts * repeat
    return groups * part // parts * repeat, stop


@njit
def tiled(constants, repeat, more):
    """Rows of constants, (n, C), each `repeat` times, and `more` rows of zeros: (n + more, at least repeat C).

    The rows are a little longer, so that they do not all lie at the same place within a page, where a processor takes a
    write to one for a write to another.
    """
    n, channels = constants.shape
    result = np.zeros((n + more, repeat * channels + 7 * LANES), constants.dtype)
    for k in range(n):
        for i in range(repeat):
            for c in range(channels):
                result[k, i * channels + c] = constants[k, c]
    return result


@njit
def fold(wide, width, channels, c):
    """Sum in float64 of the entries of channel c."""
    total = 0.0
    for j in range(c, width, channels):
        total += wide[j]
    return total


@njit
def add_moments(x, count, mean, square):
    """Join rows of x to the mean and the centred sum of squares of `count` earlier ones; the new count.

    Each chunk's sums are about the mean so far, so that a large mean costs no digits (Chan et al. 1983).
    """
    width, channels = x.shape[1], mean.shape[0]
    scratch = tiled(np.empty((0, width), x.dtype), 1, 3)
    first, second, shift = scratch[0], scratch[1], scratch[2]
    for start in range(0, x.shape[0], CHUNK):
        stop = min(start + CHUNK, x.shape[0])
        for j in range(width):
            shift[j] = x[start, j % channels] if count == 0 else mean[j % channels]
            first[j] = 0
            second[j] = 0
        for i in range(start, stop):
            for j in range(width):
                d = x[i, j] - shift[j]
                first[j] += d
                second[j] += d * d
        n = (stop - start) * (width // channels)
        for c in range(channels):
            total = fold(first, width, channels, c)
            delta = shift[c] + total / n - mean[c]
            square[c] += fold(second, width, channels, c) - total * total / n + delta * delta * count * n / (count + n)
            mean[c] += delta * n / (count + n)
        count += n
    return count


@njit
def normalise(x, residual, y, mean, scale, shift, has_residual, relu):
    zero = x.dtype.type(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            v = (x[i, j] - mean[j]) * scale[j] + shift[j]
            if has_residual:
                v += residual[i, j]
            y[i, j] = zero if relu and v <= 0 else v  # NaN stays NaN


@njit
def gradient_sums(x, gradient, y, mean, scale, shift, mask, first, second):
    """Add to the sums of the gradient g and of g (x - mean), column by column; g is 0 where the ReLU gave 0."""
    zero = x.dtype.type(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            d = x[i, j] - mean[j]
            v = y[i, j] if mask == FROM_OUTPUT else d * scale[j] + shift[j]
            g = zero if mask != NONE and v <= 0 else gradient[i, j]
            first[j] += g
            second[j] += g * d


@njit
def add(x, y):
    for i in range(x.shape[0]):
        x[i] += y[i]


@njit
def move(wide, width, sums):
    """Add the columns of each channel to its sum in float64, and start again from 0."""
    for c in range(sums.shape[0]):
        sums[c] += fold(wide, width, sums.shape[0], c)
    wide[:] = 0


@njit
def input_gradient(x, gradient, y, added, result, masked, mean, scale, shift, first, second, mask, add, keep):
    """scale (g - first - (x - mean) second) + added; g itself, where it is wanted, is `masked`."""
    zero = x.dtype.type(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            d = x[i, j] - mean[j]
            v = y[i, j] if mask == FROM_OUTPUT else d * scale[j] + shift[j]
            g = zero if mask != NONE and v <= 0 else gradient[i, j]
            if keep:
                masked[i, j] = g
            r = scale[j] * (g - first[j] - d * second[j])
            if add:
                r += added[i, j]
            result[i, j] = r


@njit
def input_gradient_in_place(x, gradient, added, mean, scale, shift, first, second, mask, add):
    """The same where the result takes the gradient's place, which the compiler must be told."""
    zero = x.dtype.type(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            d = x[i, j] - mean[j]
            g = zero if mask != NONE and d * scale[j] + shift[j] <= 0 else gradient[i, j]
            r = scale[j] * (g - first[j] - d * second[j])
            if add:
                r += added[i, j]
            gradient[i, j] = r


@njit
def normalise_tile(x, start, rows, y, constants, relu, channels, repeat, dtype):
    """relu(norm(x)) of some rows, into the beginning of y."""
    done = 0
    for step in (repeat, 1):
        block = rows_at(x, start + done, rows - done, step, channels, dtype)
        n = block.shape[0] * step
        out = y[done * channels : (done + n) * channels].reshape(block.shape)
        normalise(block, block, out, constants[0], constants[1], constants[2], False, relu)
        done += n


@njit
def rows_at(address, start, rows, step, channels, dtype):
    """Rows from `start` on, `step` of them as one: (rows // step, step * channels)."""
    first = address + start * channels * np.empty(0, dtype).itemsize
    return carray(pointer(first), (rows // step, step * channels), dtype)
