"""The kernels for feature maps on the CPU, compiled by numba and cached on disk. `kernel.py` calls them.

A channels_last map (N, C, H, W) is a matrix of N H W rows and C channels. Each thread of PyTorch's own OpenMP pool
works on its part of the rows; sums are left by part, to be merged in the order of the parts.
"""

import ctypes
import functools
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from numba import carray, cfunc, types

from verydeep.nn import sweep
from verydeep.nn.product import add_product, multiply
from verydeep.nn.sweep import CHUNK, NONE

WIDTH = 1024  # values that an inner loop runs over, at least
TILE_ROWS = 96  # rows that are normalised and multiplied while they are in the cache
SUMMED_ROWS = 16 * TILE_ROWS  # rows whose products are summed before they join the sums in float64

openmp = ctypes.CDLL("libgomp.so.1")  # already loaded, by PyTorch
for _name in ("omp_get_thread_num", "omp_get_num_threads"):
    llvmlite.binding.add_symbol(_name, ctypes.cast(openmp[_name], ctypes.c_void_p).value)
_thread_num = types.ExternalFunction("omp_get_thread_num", types.int32())
_num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())


@functools.cache
def kernels(dtype: torch.dtype) -> dict[str, Any]:
    """The compiled functions for maps of one precision; each takes an array of addresses and sizes.

    Addresses of maps are those of row 0; `sums` are (parts, 2, C), `statistics` (5, C) as the kernel of that name
    gives them.
    """
    real = np.float32 if dtype == torch.float32 else np.float64
    signature = types.void(types.CPointer(types.int64))

    @cfunc(signature, cache=True)
    def moments(arguments):
        parts, rows, channels, x, sums = carray(arguments, 5)
        repeat = max(1, WIDTH // channels)
        for part in range(_thread_num(), parts, _num_threads()):
            start, stop = sweep.part(part, parts, rows, repeat)
            total = sweep.flat(sums + 16 * part * channels, 2 * channels, np.float64).reshape(2, channels)
            total[:] = 0
            count = 0
            for step in (repeat, 1):
                block = sweep.rows_at(x, start, stop - start, step, channels, real)
                count = sweep.add_moments(block, count, total[0], total[1])
                start += block.shape[0] * step

    @cfunc(signature, cache=True)
    def statistics(arguments):
        """Mean and variance of all parts; what to multiply and add; the running statistics' step towards them."""
        a = carray(arguments, 12)
        parts, rows, channels, sums, weight, bias, running_mean, running_var, result, training = (
            a[0],
            a[1],
            a[2],
            a[3],
            a[4],
            a[5],
            a[6],
            a[7],
            a[8],
            a[9],
        )
        eps, momentum = a[10:12].view(np.float64)
        repeat = max(1, WIDTH // channels)
        out = sweep.flat(result, 5 * channels, real).reshape(5, channels)
        gains, biases = sweep.flat(weight, channels, real), sweep.flat(bias, channels, real)
        means, variances = sweep.flat(running_mean, channels, real), sweep.flat(running_var, channels, real)
        partial = sweep.flat(sums, parts * 2 * channels, np.float64).reshape(parts, 2, channels)
        for c in range(channels):
            if training:
                count, mean, square = 0, 0.0, 0.0
                for part in range(parts):
                    start, stop = sweep.part(part, parts, rows, repeat)
                    n = stop - start
                    if n == 0:
                        continue
                    delta = partial[part, 0, c] - mean
                    mean += delta * n / (count + n)
                    square += partial[part, 1, c] + delta * delta * count * n / (count + n)
                    count += n
                variance = square / rows
                if running_mean != 0:
                    means[c] += real(momentum * (mean - means[c]))
                    variances[c] += real(momentum * (square / (rows - 1) - variances[c]))
            else:
                mean, variance = np.float64(means[c]), np.float64(variances[c])
            inverse = 1 / np.sqrt(variance + eps)
            scale = inverse * gains[c] if weight != 0 else inverse
            rounded = real(mean)
            out[0, c] = rounded
            out[1, c] = scale
            # (x - rounded mean) scale + shift: what the mean lost in rounding is in the shift
            out[2, c] = (biases[c] if bias != 0 else 0.0) - (mean - rounded) * scale
            out[3, c] = inverse
            out[4, c] = mean - rounded

    @cfunc(signature, cache=True)
    def normalise(arguments):
        parts, rows, channels, x, residual, y, statistics, relu = carray(arguments, 8)
        repeat = max(1, WIDTH // channels)
        constants = sweep.flat(statistics, 3 * channels, real).reshape(3, channels)
        for part in range(_thread_num(), parts, _num_threads()):
            start, stop = sweep.part(part, parts, rows, repeat)
            for step in (repeat, 1):
                block = sweep.rows_at(x, start, stop - start, step, channels, real)
                tiled = sweep.tiled(constants, step, 0)
                sweep.normalise(
                    block,
                    sweep.rows_at(residual, start, stop - start, step, channels, real),
                    sweep.rows_at(y, start, stop - start, step, channels, real),
                    tiled[0],
                    tiled[1],
                    tiled[2],
                    residual != 0,
                    relu != 0,
                )
                start += block.shape[0] * step

    @cfunc(signature, cache=True)
    def gradient_sums(arguments):
        parts, rows, channels, x, gradient, y, statistics, mask, sums = carray(arguments, 9)
        repeat = max(1, WIDTH // channels)
        constants = sweep.flat(statistics, 3 * channels, real).reshape(3, channels)
        for part in range(_thread_num(), parts, _num_threads()):
            start, stop = sweep.part(part, parts, rows, repeat)
            total = sweep.flat(sums + 16 * part * channels, 2 * channels, np.float64).reshape(2, channels)
            total[:] = 0
            for step in (repeat, 1):
                block = sweep.rows_at(x, start, stop - start, step, channels, real)
                gradients = sweep.rows_at(gradient, start, stop - start, step, channels, real)
                outputs = sweep.rows_at(y, start, stop - start, step, channels, real)
                tiled = sweep.tiled(constants, step, 2)
                first, second = tiled[3], tiled[4]
                for i in range(0, block.shape[0], CHUNK):
                    sweep.gradient_sums(
                        block[i : i + CHUNK],
                        gradients[i : i + CHUNK],
                        outputs[i : i + CHUNK],
                        tiled[0],
                        tiled[1],
                        tiled[2],
                        mask,
                        first,
                        second,
                    )
                    sweep.move(first, block.shape[1], total[0])
                    sweep.move(second, block.shape[1], total[1])
                start += block.shape[0] * step

    @cfunc(signature, cache=True)
    def gradients(arguments):
        """Gradients of weight and bias, and the two sums over the batch that the input's gradient is corrected by."""
        parts, rows, channels, sums, statistics, training, result = carray(arguments, 7)
        partial = sweep.flat(sums, parts * 2 * channels, np.float64).reshape(parts, 2, channels)
        constants = sweep.flat(statistics, 5 * channels, real).reshape(5, channels)
        out = sweep.flat(result, 4 * channels, real).reshape(4, channels)
        for c in range(channels):
            first, second = 0.0, 0.0
            for part in range(parts):
                first += partial[part, 0, c]
                second += partial[part, 1, c]
            inverse, lost = np.float64(constants[3, c]), np.float64(constants[4, c])
            second -= lost * first
            slope = inverse * inverse * second / rows
            out[0, c] = inverse * second
            out[1, c] = first
            out[2, c] = first / rows - lost * slope if training else 0.0
            out[3, c] = slope if training else 0.0

    @cfunc(signature, cache=True)
    def input_gradient(arguments):
        parts, rows, channels, x, gradient, y, statistics, mask, corrections, added, result, masked = carray(
            arguments, 12
        )
        repeat = max(1, WIDTH // channels)
        constants = sweep.flat(statistics, 3 * channels, real).reshape(3, channels)
        corrected = sweep.flat(corrections, 4 * channels, real).reshape(4, channels)
        for part in range(_thread_num(), parts, _num_threads()):
            start, stop = sweep.part(part, parts, rows, repeat)
            for step in (repeat, 1):
                n = stop - start
                block = sweep.rows_at(x, start, n, step, channels, real)
                grads = sweep.rows_at(gradient, start, n, step, channels, real)
                more = sweep.rows_at(added, start, n, step, channels, real)
                first, second = sweep.tiled(constants, step, 0), sweep.tiled(corrected[2:], step, 0)
                if result == gradient:
                    sweep.input_gradient_in_place(
                        block, grads, more, first[0], first[1], first[2], second[0], second[1], mask, added != 0
                    )
                else:
                    sweep.input_gradient(
                        block,
                        grads,
                        sweep.rows_at(y, start, n, step, channels, real),
                        more,
                        sweep.rows_at(result, start, n, step, channels, real),
                        sweep.rows_at(masked, start, n, step, channels, real),
                        first[0],
                        first[1],
                        first[2],
                        second[0],
                        second[1],
                        mask,
                        added != 0,
                        masked != 0,
                    )
                start += block.shape[0] * step

    @cfunc(signature, cache=True)
    def normalise_multiply(arguments):
        """z = relu(norm(x)) W + residual, W (C, columns), a few rows at a time: norm and ReLU stay in the cache."""
        parts, rows, channels, x, residual, z, statistics, relu, weight, columns = carray(arguments, 10)
        repeat = max(1, min(TILE_ROWS // 3, WIDTH // channels))
        constants = sweep.flat(statistics, 3 * channels, real).reshape(3, channels)
        tiled = sweep.tiled(constants, repeat, 0)
        y = np.empty(TILE_ROWS * channels, real)
        for part in range(_thread_num(), parts, _num_threads()):
            start, stop = sweep.part(part, parts, rows, TILE_ROWS)
            for first in range(start, stop, TILE_ROWS):
                n = min(TILE_ROWS, stop - first)
                sweep.normalise_tile(x, first, n, y, tiled, relu != 0, channels, repeat, real)
                target = z + 4 * first * columns
                multiply(y.ctypes.data, channels, 1, weight, columns, target, columns, n, columns, channels)
                if residual != 0:
                    sweep.add(
                        sweep.flat(target, n * columns, real),
                        sweep.flat(residual + 4 * first * columns, n * columns, real),
                    )

    @cfunc(signature, cache=True)
    def multiply_backward(arguments):
        """From the gradient of z: those of W, of y = relu(norm(x)), and the sums that norm's gradients are made of.

        W's is summed by part, (columns, C), or transposed where C is less than the columns.
        """
        parts, rows, channels, x, gradient, result, statistics, mask, weight, columns, sums, products = carray(
            arguments, 12
        )
        repeat = max(1, min(TILE_ROWS // 3, WIDTH // channels))
        constants = sweep.flat(statistics, 3 * channels, real).reshape(3, channels)
        tiled = sweep.tiled(constants, repeat, 2)
        mean, scale, shift, first, second = tiled[0], tiled[1], tiled[2], tiled[3], tiled[4]
        y = np.empty(TILE_ROWS * channels, real)
        recent = np.zeros(channels * columns, real)  # the weight's gradient since it was last moved to float64
        for part in range(_thread_num(), parts, _num_threads()):
            start, stop = sweep.part(part, parts, rows, TILE_ROWS)
            total = sweep.flat(sums + 16 * part * channels, 2 * channels, np.float64).reshape(2, channels)
            total[:] = 0
            exact = sweep.flat(products + 8 * part * channels * columns, channels * columns, np.float64)
            exact[:] = 0
            since = 0
            for row in range(start, stop, TILE_ROWS):
                n = min(TILE_ROWS, stop - row)
                sweep.normalise_tile(x, row, n, y, tiled, mask != NONE, channels, repeat, real)
                g, gy = gradient + 4 * row * columns, result + 4 * row * channels
                if channels < columns:
                    add_product(
                        y.ctypes.data, 1, channels, g, columns, recent.ctypes.data, columns, channels, columns, n
                    )
                else:
                    add_product(
                        g, 1, columns, y.ctypes.data, channels, recent.ctypes.data, channels, columns, channels, n
                    )
                multiply(g, columns, 1, weight, channels, gy, channels, n, channels, columns)
                done = 0
                for step in (repeat, 1):
                    block = sweep.rows_at(x, row + done, n - done, step, channels, real)
                    grads = sweep.rows_at(result, row + done, n - done, step, channels, real)
                    sweep.gradient_sums(block, grads, block, mean, scale, shift, mask, first, second)
                    done += block.shape[0] * step
                since += n
                if since >= SUMMED_ROWS or row + n == stop:
                    sweep.move(first, repeat * channels, total[0])
                    sweep.move(second, repeat * channels, total[1])
                    sweep.move(recent, channels * columns, exact)
                    since = 0

    made = (moments, statistics, normalise, gradient_sums, gradients, input_gradient)
    made += (normalise_multiply, multiply_backward)
    return {kernel.__name__: kernel.ctypes for kernel in made}
