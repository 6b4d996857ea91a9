"""Matrix products of small tiles held in vector registers, for the kernels of `compiled.py`; float32.

numba's cache looks at `compiled.py` alone: after a change here, touch that file.
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # float32 values of one vector register
HAS_LANES = llvmlite.binding.get_host_cpu_features().get("avx512f", False)  # else the tiles would not fit


def _tile(rows: int, vectors: int, *, accumulate: bool) -> Any:
    """C = A B, or C += A B, for a tile of C that stays in registers: `rows` by `vectors` registers.

    The function takes addresses of A, B, C and strides in values: A (rows, count) by its two, B and C by row.
    """

    @intrinsic
    def tile(typing_context, a, a_row, a_column, b, b_row, c, c_row, count):
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, a_row, a_column, b, b_row, c, c_row, count = arguments
            integer, number = ir.IntType(64), ir.FloatType()
            register = ir.VectorType(number, LANES)

            def load(address: Any, kind: Any) -> Any:
                return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)

            def at(base: Any, *terms: Any) -> Any:
                for term in terms:
                    base = builder.add(base, builder.mul(term, ir.Constant(integer, 4)))
                return base

            places = [(r, v) for r in range(rows) for v in range(vectors)]
            targets = [at(c, builder.mul(c_row, integer(r)), integer(v * LANES)) for r, v in places]
            zero = ir.Constant(register, [0.0] * LANES)
            start = [load(target, register) if accumulate else zero for target in targets]
            a_rows = [at(a, builder.mul(a_row, integer(r))) for r in range(rows)]
            before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(integer)
            sums = [builder.phi(register) for _ in places]
            b_start = at(b, builder.mul(k, b_row))
            b_values = [load(at(b_start, integer(v * LANES)), register) for v in range(vectors)]
            offset = builder.mul(k, a_column)
            undefined = ir.Constant(register, ir.Undefined)
            mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            a_values = [
                builder.shuffle_vector(
                    builder.insert_element(undefined, load(at(row, offset), number), ir.IntType(32)(0)), undefined, mask
                )
                for row in a_rows
            ]
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(register, [register] * 3), f"llvm.fma.v{LANES}f32"
            )
            results = [builder.call(fma, (a_values[r], b_values[v], s)) for (r, v), s in zip(places, sums, strict=True)]
            following = builder.add(k, integer(1))
            k.add_incoming(integer(0), before)
            k.add_incoming(following, loop)
            for phi, first, result in zip(sums, start, results, strict=True):
                phi.add_incoming(first, before)
                phi.add_incoming(result, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
            builder.position_at_end(after)
            for target, result in zip(targets, results, strict=True):
                builder.store(result, builder.inttoptr(target, register.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return tile


_SET_4_4, _SET_8_2, _SET_8_1, _SET_1_1 = (_tile(r, v, accumulate=False) for r, v in ((4, 4), (8, 2), (8, 1), (1, 1)))
_ADD_4_4, _ADD_8_2, _ADD_8_1 = (_tile(r, v, accumulate=True) for r, v in ((4, 4), (8, 2), (8, 1)))


@njit
def multiply(a, a_row, a_column, b, b_row, c, c_row, rows, columns, count):
    """C = A B for addresses of float32 matrices: A (rows, count), B (count, columns), C (rows, columns)."""
    column = 0
    while column < columns:
        left = columns - column
        p, q, i = b + 4 * column, c + 4 * column, 0
        if left >= 4 * LANES:
            while i + 4 <= rows:
                _SET_4_4(a + 4 * i * a_row, a_row, a_column, p, b_row, q + 4 * i * c_row, c_row, count)
                i += 4
            width = 4 * LANES
        elif left >= 2 * LANES:
            while i + 8 <= rows:
                _SET_8_2(a + 4 * i * a_row, a_row, a_column, p, b_row, q + 4 * i * c_row, c_row, count)
                i += 8
            width = 2 * LANES
        else:
            while i + 8 <= rows:
                _SET_8_1(a + 4 * i * a_row, a_row, a_column, p, b_row, q + 4 * i * c_row, c_row, count)
                i += 8
            width = LANES
        while i < rows:
            for v in range(0, width, LANES):
                _SET_1_1(a + 4 * i * a_row, a_row, a_column, p + 4 * v, b_row, q + 4 * (i * c_row + v), c_row, count)
            i += 1
        column += width


@njit
def add_product(a, a_row, a_column, b, b_row, c, c_row, rows, columns, count):
    """C += A B for addresses of float32 matrices, rows a multiple of 8: see `multiply`."""
    column = 0
    while column < columns:
        left = columns - column
        p, q = b + 4 * column, c + 4 * column
        if left >= 4 * LANES:
            for i in range(0, rows, 4):
                _ADD_4_4(a + 4 * i * a_row, a_row, a_column, p, b_row, q + 4 * i * c_row, c_row, count)
            column += 4 * LANES
        elif left >= 2 * LANES:
            for i in range(0, rows, 8):
                _ADD_8_2(a + 4 * i * a_row, a_row, a_column, p, b_row, q + 4 * i * c_row, c_row, count)
            column += 2 * LANES
        else:
            for i in range(0, rows, 8):
                _ADD_8_1(a + 4 * i * a_row, a_row, a_column, p, b_row, q + 4 * i * c_row, c_row, count)
            column += LANES
