"""Register tiles of decode attention, written as LLVM vectors.

    scores      p[i, t0 + j] = q[i] · k[t0 + j]                  HEADS × (LANES / HEADS) dot products at a time
    accumulate  acc[i] = acc[i] · shrink[i] + Σ_t p[i, t] v[t]   HEADS × 4 vectors of acc in registers for a whole tile

`tile` is an empty array whose number of dimensions says how many tokens a softmax tile has, `tile_like`: so the size is
part of the type, and every size a compiled variant of its own that numba's cache keeps. (A tuple would do as well, but
parallel regions do not take them.) Vectors have 16 lanes where the CPU has 512-bit registers, else 8. Elements beyond
the last whole vector of a row go through a zeroed buffer: right for any head size, quick for multiples of 16. What was
tried before, and the figures, are in `decode_numba.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvbench_kernels.elements import constant, decode

# isort: split
import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 8
"""float32 lanes of a vector; also the accumulators of a tile."""
DEPTH = 4
"""Most vectors of one head's acc that are kept in registers at once."""

_F32, _I32 = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_F32, LANES)
_FUSED = ("contract",)
_INT = types.intp


def tile_like(tokens: int) -> np.ndarray[Any, Any]:
    """The `tile` of 16, 32, 64 or 128 tokens."""
    return np.empty((0,) * (tokens.bit_length() - 4), np.float32)


def _tokens(kind: Any) -> int:
    """Tokens of a tile, from its type."""
    return 8 << int(kind.ndim)


@intrinsic
def tokens_of(typing_context: Any, tile: Any) -> Any:
    """Tokens of a tile, a constant of the compiled variant."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _int(_tokens(tile))

    return _INT(tile), generate


class _Array:
    """A numba array argument: loads and stores at element offsets, one element or `LANES` at a time."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self.builder, self.dtype = builder, kind.dtype
        self.data = context.make_array(kind)(context, builder, value=value).data
        self.element = context.get_data_type(kind.dtype)
        self.itemsize = context.get_abi_sizeof(self.element)

    def at(self, offset: Any) -> Any:
        return self.builder.gep(self.data, [offset])

    def prefetch(self, offset: Any) -> None:
        """Ask for the cache line of an element, as far as the second-level cache: K and V tiles whose rows lie a
        power of two apart evict each other from the first level before they are used (measured: no gain there, a
        third less time with the second level)."""
        byte = ir.IntType(8).as_pointer()
        flag = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(self.builder.module, flag, "llvm.prefetch.p0")
        self.builder.call(function, [self.builder.bitcast(self.at(offset), byte), _I32(0), _I32(2), _I32(1)])

    def load(self, offset: Any) -> Any:
        return self.builder.load(self.at(offset))

    def load_vector(self, offset: Any) -> Any:
        pointer = self.builder.bitcast(self.at(offset), ir.VectorType(self.element, LANES).as_pointer())
        return decode(self.builder, self.builder.load(pointer, align=self.itemsize), self.dtype)

    def load_part(self, offset: Any, count: Any) -> Any:
        """The first `count` lanes; zeros follow."""
        builder, kind = self.builder, ir.VectorType(self.element, LANES)
        buffer = cgutils.alloca_once(builder, kind)
        builder.store(constant(kind, 0), buffer)
        lanes = builder.bitcast(buffer, self.element.as_pointer())
        with cgutils.for_range(builder, count) as loop:
            builder.store(self.load(builder.add(offset, loop.index)), builder.gep(lanes, [loop.index]))
        return decode(builder, builder.load(buffer), self.dtype)

    def store_vector(self, value: Any, offset: Any) -> None:
        pointer = self.builder.bitcast(self.at(offset), value.type.as_pointer())
        self.builder.store(value, pointer, align=self.itemsize)


def scores_of(heads: int) -> Any:
    """`scores(q, q_start, q_stride, data, rows, t0, k_dim, p, p_start, ahead, tile)` for `heads` query heads and
    `LANES // heads` tokens. q float32, head i from `q_start + i · q_stride`, zero beyond k_dim up to whole vectors;
    token j's K from `rows[t0 + j]`; results to `p[p_start + i · tile + t0 + j]`. Rows `ahead[t0 + j]` are
    prefetched."""
    tokens = LANES // heads

    @intrinsic
    def scores(
        typing_context: Any,
        q: Any,
        q0: Any,
        q_stride: Any,
        data: Any,
        rows: Any,
        t0: Any,
        k_dim: Any,
        p: Any,
        p0: Any,
        ahead: Any,
        tile: Any,
    ) -> Any:
        pitch = _tokens(tile)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            q_array, data_array, row_array, p_array = (
                _Array(context, builder, signature.args[i], args[i]) for i in (0, 3, 4, 7)
            )
            ahead_array = _Array(context, builder, signature.args[9], args[9])
            q_start, stride, first, size, p_start = args[1], args[2], args[5], args[6], args[8]
            starts = [row_array.load(_plus(builder, first, j)) for j in range(tokens)]
            next_starts = [ahead_array.load(_plus(builder, first, j)) for j in range(tokens)]
            queries = [builder.add(q_start, builder.mul(stride, _int(i))) for i in range(heads)]
            sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(heads * tokens)]
            for place in sums:
                builder.store(constant(_VECTOR, 0.0), place)

            def step(d: Any, load: Callable[[Any], Any]) -> None:
                q_vectors = [q_array.load_vector(builder.add(start, d)) for start in queries]
                for start in next_starts:
                    data_array.prefetch(builder.add(start, d))
                for j, start in enumerate(starts):
                    k_vector = load(builder.add(start, d))
                    for i, q_vector in enumerate(q_vectors):
                        _add_product(builder, sums[i * tokens + j], q_vector, k_vector)

            _over_vectors(builder, data_array, size, 1, step)
            totals = _lane_sums(builder, [builder.load(place) for place in sums])
            for i in range(heads):
                mask = ir.Constant(ir.VectorType(_I32, tokens), list(range(i * tokens, (i + 1) * tokens)))
                part = builder.shuffle_vector(totals, totals, mask)
                p_array.store_vector(part, _plus(builder, builder.add(p_start, first), i * pitch))
            return context.get_dummy_value()

        return types.none(q, _INT, _INT, data, rows, _INT, _INT, p, _INT, ahead, tile), generate

    return scores


def accumulate_of(heads: int) -> Any:
    """`accumulate(acc, acc_stride, shrink, g, data, rows, n, v_dim, p, ahead, tile)` for query heads g … g + heads − 1.
    acc float32, head i from `(g + i) · acc_stride`, whole vectors; token t's V from `rows[t]`; weights
    `p[(g + i) · tile + t]`. Rows `ahead[t]` are prefetched."""

    @intrinsic
    def accumulate(
        typing_context: Any,
        acc: Any,
        acc_stride: Any,
        shrink: Any,
        g: Any,
        data: Any,
        rows: Any,
        n: Any,
        v_dim: Any,
        p: Any,
        ahead: Any,
        tile: Any,
    ) -> Any:
        pitch = _tokens(tile)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            acc_array, shrink_array, data_array, row_array, p_array = (
                _Array(context, builder, signature.args[i], args[i]) for i in (0, 2, 4, 5, 8)
            )
            ahead_array = _Array(context, builder, signature.args[9], args[9])
            stride, first, count, size = args[1], args[3], args[6], args[7]
            indices = [_plus(builder, first, i) for i in range(heads)]

            def step(d: Any, load: Callable[[Any], Any], depth: int = 1) -> None:
                places = [
                    [_plus(builder, builder.add(builder.mul(stride, index), d), c * LANES) for c in range(depth)]
                    for index in indices
                ]
                sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in at] for at in places]
                for index, at, kept in zip(indices, places, sums, strict=True):
                    factor = _splat(builder, shrink_array.load(index))
                    for place, total in zip(at, kept, strict=True):
                        builder.store(builder.fmul(acc_array.load_vector(place), factor), total)
                with cgutils.for_range(builder, count) as loop:
                    start = builder.add(row_array.load(loop.index), d)
                    next_start = builder.add(ahead_array.load(loop.index), d)
                    for c in range(0, depth, max(1, 64 // (LANES * data_array.itemsize))):
                        data_array.prefetch(_plus(builder, next_start, c * LANES))
                    values = [load(_plus(builder, start, c * LANES)) for c in range(depth)]
                    for index, kept in zip(indices, sums, strict=True):
                        weight_at = builder.add(builder.mul(index, _int(pitch)), loop.index)
                        weight = _splat(builder, p_array.load(weight_at))
                        for total, value in zip(kept, values, strict=True):
                            _add_product(builder, total, weight, value)
                for at, kept in zip(places, sums, strict=True):
                    for place, total in zip(at, kept, strict=True):
                        acc_array.store_vector(builder.load(total), place)

            _over_vectors(builder, data_array, size, max(1, min(DEPTH, LANES // heads)), step)
            return context.get_dummy_value()

        return types.none(acc, _INT, shrink, _INT, data, rows, _INT, _INT, p, ahead, tile), generate

    return accumulate


@intrinsic
def highest(typing_context: Any, p: Any, start: Any, tile: Any) -> Any:
    """Largest of a tile's weights, from `p[start]` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = _Array(context, builder, signature.args[0], args[0])
        vectors = [array.load_vector(_plus(builder, args[1], i)) for i in range(0, _tokens(tile), LANES)]
        best = vectors[0]
        for vector in vectors[1:]:
            best = _larger(builder, best, vector)
        width = LANES
        while width > 1:
            width //= 2
            mask = ir.Constant(ir.VectorType(_I32, LANES), [(lane + width) % LANES for lane in range(LANES)])
            best = _larger(builder, best, builder.shuffle_vector(best, best, mask))
        return builder.extract_element(best, _I32(0))

    return types.float32(p, _INT, tile), generate


def _over_vectors(builder: Any, data: _Array, size: Any, depth: int, step: Any) -> None:
    """Call `step` for every group of `depth` vectors of a row of `size` elements, every vector, and what is left."""
    done = _int(0)
    for vectors in (depth, 1) if depth > 1 else (1,):
        width = _int(vectors * LANES)
        end = builder.add(done, builder.mul(builder.sdiv(builder.sub(size, done), width), width))
        with cgutils.for_range_slice(builder, done, end, width, ir.IntType(64)) as (d, _):
            step(d, data.load_vector, *((vectors,) if vectors > 1 else ()))
        done = end
    rest = builder.sub(size, done)
    with builder.if_then(builder.icmp_signed(">", rest, _int(0)), likely=False):
        step(done, lambda offset: data.load_part(offset, rest))


def _lane_sums(builder: Any, vectors: list[Any]) -> Any:
    """`LANES` vectors → one, whose lane i is the sum over the lanes of vector i.

    Halving: two vectors become one by adding their low and high halves, so the last level holds one sum per lane.
    """
    width = LANES
    while len(vectors) > 1:
        width //= 2
        half = len(vectors) // 2
        vectors = [_fold(builder, vectors[i], vectors[i + half], width) for i in range(half)]
    return vectors[0]


def _fold(builder: Any, a: Any, b: Any, width: int) -> Any:
    """Lanes come in groups of 2 · width, each group a partial sum's lanes: a's and b's groups side by side, halved.

    Lane l of the result with l mod 2·width < width belongs to a, else to b.
    """
    groups = range(0, LANES, 2 * width)
    low = [
        lane
        for start in groups
        for lane in (*range(start, start + width), *range(LANES + start, LANES + start + width))
    ]
    high = [lane + width for lane in low]
    kind = ir.VectorType(_I32, LANES)
    left = builder.shuffle_vector(a, b, ir.Constant(kind, low))
    right = builder.shuffle_vector(a, b, ir.Constant(kind, high))
    return builder.fadd(left, right)


def _add_product(builder: Any, place: Any, a: Any, b: Any) -> None:
    product = builder.fmul(a, b, flags=_FUSED)
    builder.store(builder.fadd(builder.load(place), product, flags=_FUSED), place)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", b, a), b, a)


def _splat(builder: Any, scalar: Any) -> Any:
    lane = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(lane, lane, constant(ir.VectorType(_I32, LANES), 0))


def _plus(builder: Any, index: Any, offset: int) -> Any:
    return builder.add(index, _int(offset))


def _int(value: int) -> Any:
    return ir.Constant(ir.IntType(64), value)
