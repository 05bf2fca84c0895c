"""Single elements of a KV block as float32: loads that decode, the stores' encodings, and exp2.

The array's element type says what is stored: float32; uint16 = bf16 bits; int16 = fp16 bits; int8; uint8 = fp8 e4m3
bits (OCP: no infinities, NaN is 0x7F); bool = fp8 e5m2 bits, the only other type of one byte that numba launches
quickly. fp8 is decoded by moving its bits: a table of 256 entries was slower than fp32.
All are written with LLVM instructions that its loop vectoriser understands, and take the index as it is (no negative
indices), which numba's own subscript does not.
"""

from __future__ import annotations

from typing import Any

from kvbench_kernels.runtime import helper  # first: it sets numba's cache folder

# isort: split
import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_FEATURES = llvmlite.binding.get_host_cpu_features()
HAS_HALF = bool(_FEATURES.get("f16c") or _FEATURES.get("fp16") or _FEATURES.get("fullfp16"))
"""Whether LLVM may use the CPU's own half-precision conversion; without it LLVM would call a function that is not
there."""
_F32, _I32, _I16, _I8 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)


def stored_values(stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Stored elements as float64, by numpy: the reference of `fetch`."""
    if stored.dtype == np.uint16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    elif stored.dtype == np.int16:
        stored = stored.view(np.float16)
    elif stored.dtype == np.bool_:
        stored = (stored.view(np.uint8).astype(np.uint16) << 8).view(np.float16)
    elif stored.dtype == np.uint8:
        return _e4m3_values(stored)
    return stored.astype(np.float64)


def _e4m3_values(stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """By the definition: 4 bits of exponent with bias 7, 3 of mantissa, NaN where all seven are set."""
    exponent, mantissa = (stored >> 3 & 15).astype(np.int64), (stored & 7).astype(np.float64)
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    size = np.where(stored & 0x7F == 0x7F, np.nan, size)
    return np.where(stored & 0x80, -size, size)


@intrinsic
def fetch(typing_context: Any, array: Any, index: Any) -> Any:
    """`array[index]` decoded to float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(context, builder, signature, args)
        return decode(builder, builder.load(place), signature.args[0].dtype)

    return types.float32(array, types.intp), generate


@intrinsic
def put(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """`array[index] = value`, a float32 encoded as `array` stores it: round to nearest even, and what is
    beyond a narrow form's largest number becomes that."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        encoded = _encode(builder, args[2], signature.args[0].dtype)
        builder.store(encoded, pointer(context, builder, signature, args))
        return context.get_dummy_value()

    return types.none(array, types.intp, types.float32), generate


LARGEST = {types.int8: 127.0, types.uint8: 448.0, types.boolean: 57344.0}
"""The number that a scaled row's largest element becomes, by stored form: each its own, and none for the others."""


@intrinsic
def largest(typing_context: Any, array: Any) -> Any:
    """`LARGEST` of the array's form, a constant when compiled."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(_F32, LARGEST[signature.args[0].dtype])

    return types.float32(array), generate


@intrinsic
def magnitude(typing_context: Any, value: Any) -> Any:
    """|x| as an int32 that orders like |x|, infinity and NaN above everything: a maximum that cannot lose a NaN and
    vectorises without fast math."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.and_(builder.bitcast(args[0], _I32), _I32(0x7FFFFFFF))

    return types.int32(types.float32), generate


@intrinsic
def from_magnitude(typing_context: Any, bits: Any) -> Any:
    """The float32 that `magnitude` came from."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), generate


@intrinsic
def _round(typing_context: Any, value: Any) -> Any:
    """The nearest whole float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [_F32]), args)

    return types.float32(types.float32), generate


@intrinsic
def _two_to_the(typing_context: Any, whole: Any) -> Any:
    """2^n for a whole float32 n in [-126, 127]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        exponent = builder.add(builder.fptosi(args[0], _I32), _I32(127))
        return builder.bitcast(builder.shl(exponent, _I32(23)), _F32)

    return types.float32(types.float32), generate


def pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, value=args[0])
    return builder.gep(array.data, [args[1]])


def decode(builder: Any, stored: Any, dtype: Any) -> Any:
    """LLVM value of one stored element, or of a vector of them → float32 of the same shape."""
    wide, wide_bits = shaped(_F32, stored.type), shaped(_I32, stored.type)
    if dtype == types.float32:
        return stored
    if dtype == types.int8:
        return builder.sitofp(stored, wide)
    if dtype == types.uint16:
        bits = builder.zext(stored, wide_bits)
        return builder.bitcast(builder.shl(bits, constant(wide_bits, 16)), wide)
    if dtype == types.int16:
        return _decode_half(builder, stored) if HAS_HALF else _decode_half_by_bits(builder, stored)
    if dtype == types.boolean:
        half = builder.shl(builder.zext(stored, shaped(_I16, stored.type)), constant(shaped(_I16, stored.type), 8))
        return _decode_half(builder, half) if HAS_HALF else _decode_half_by_bits(builder, half)
    if dtype == types.uint8:
        return _decode_e4m3(builder, stored)
    raise TypeError(f"no KV element is stored as {dtype}")


def shaped(scalar: Any, like: Any) -> Any:
    """The scalar type, or a vector of it as long as `like`."""
    return ir.VectorType(scalar, like.count) if isinstance(like, ir.VectorType) else scalar


def constant(kind: Any, value: Any) -> Any:
    """A constant of a scalar type, or of a vector type with the value in every lane."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _decode_half(builder: Any, stored: Any) -> Any:
    half = builder.bitcast(stored, shaped(ir.HalfType(), stored.type))
    return builder.fpext(half, shaped(_F32, stored.type))


def _decode_half_by_bits(builder: Any, stored: Any) -> Any:
    """Exponent and mantissa moved into place, times 2^112 for the difference of the exponents' biases."""
    wide, wide_bits = shaped(_F32, stored.type), shaped(_I32, stored.type)
    bits = builder.zext(stored, wide_bits)
    sign = builder.shl(builder.and_(bits, constant(wide_bits, 0x8000)), constant(wide_bits, 16))
    moved = builder.shl(builder.and_(bits, constant(wide_bits, 0x7FFF)), constant(wide_bits, 13))
    scaled = builder.fmul(builder.bitcast(moved, wide), constant(wide, 2.0**112))
    special = builder.or_(moved, constant(wide_bits, 0x7F800000))
    is_special = builder.icmp_unsigned(">=", moved, constant(wide_bits, 0x7C00 << 13))
    size = builder.select(is_special, special, builder.bitcast(scaled, wide_bits))
    return builder.bitcast(builder.or_(sign, size), wide)


def _decode_e4m3(builder: Any, stored: Any) -> Any:
    """Exponent and mantissa moved into those of a float32, times 2^120 for the difference of the biases. Extending the
    sign before the shift brings it along; 0x7F and 0xFF are NaN."""
    wide, bits32 = shaped(_F32, stored.type), shaped(_I32, stored.type)
    shifted = builder.shl(builder.sext(stored, bits32), constant(bits32, 20))
    moved = builder.and_(shifted, constant(bits32, 0x87F00000))
    value = builder.fmul(builder.bitcast(moved, wide), constant(wide, 2.0**120))
    is_nan = builder.icmp_unsigned("==", builder.or_(stored, constant(stored.type, 0x80)), constant(stored.type, 0xFF))
    return builder.select(is_nan, constant(wide, float("nan")), value)


def _encode(builder: Any, value: Any, dtype: Any) -> Any:
    if dtype == types.float32:
        return value
    if dtype == types.int8:
        return _encode_int8(builder, value)
    if dtype == types.uint16:
        return _encode_bfloat(builder, value)
    if dtype == types.int16:
        return _encode_half(builder, value) if HAS_HALF else _encode_half_by_bits(builder, value)
    if dtype == types.uint8:
        return _encode_fp8(builder, value, mantissa=3, bias=7, largest=0x43E00000, infinity=0x7F)
    if dtype == types.boolean:
        return _encode_fp8(builder, value, mantissa=2, bias=15, largest=0x47600000, infinity=0x7C)
    raise TypeError(f"no KV element is stored as {dtype}")


def _encode_int8(builder: Any, value: Any) -> Any:
    """The nearest whole number, ties to even, at most ±127; NaN is 0."""
    whole = builder.call(builder.module.declare_intrinsic("llvm.rint", [_F32]), [value])
    most, least, zero = (ir.Constant(_F32, limit) for limit in (127.0, -127.0, 0.0))
    whole = builder.select(builder.fcmp_ordered(">", whole, most), most, whole)
    whole = builder.select(builder.fcmp_ordered("<", whole, least), least, whole)
    whole = builder.select(builder.fcmp_unordered("uno", whole, whole), zero, whole)
    return builder.fptosi(whole, _I8)


def _encode_bfloat(builder: Any, value: Any) -> Any:
    """Half a unit of the last place kept, less one when that place is even, then cut; a NaN stays one."""
    bits = builder.bitcast(value, _I32)
    odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, _I32(0x7FFF))), _I32(16))
    kept = builder.select(builder.fcmp_unordered("uno", value, value), _I32(0x7FC0), rounded)
    return builder.trunc(kept, _I16)


def _encode_half(builder: Any, value: Any) -> Any:
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _I16)


def _encode_half_by_bits(builder: Any, value: Any) -> Any:
    """Normal numbers by moving the bits with a rounding carry; subnormal ones by adding 0.5, which makes the float
    adder round at 2^-24; 65520 and above become infinity."""
    bits = builder.bitcast(value, _I32)
    sign = builder.and_(builder.lshr(bits, _I32(16)), _I32(0x8000))
    size = builder.and_(bits, _I32(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, _I32(13)), _I32(1))
    carried = builder.add(builder.add(size, odd), _I32((-112 << 23) + 0xFFF))
    normal = builder.lshr(carried, _I32(13))
    sum_bits = builder.bitcast(builder.fadd(builder.bitcast(size, _F32), ir.Constant(_F32, 0.5)), _I32)
    subnormal = builder.sub(sum_bits, _I32(0x3F000000))
    small = builder.icmp_unsigned("<", size, _I32(0x38800000))
    finite = builder.select(small, subnormal, normal)
    is_nan = builder.icmp_unsigned(">", size, _I32(0x7F800000))
    special = builder.select(is_nan, _I32(0x7E00), _I32(0x7C00))
    is_special = builder.icmp_unsigned(">=", size, _I32(0x477FF000))
    half = builder.or_(sign, builder.select(is_special, special, finite))
    return builder.trunc(half, _I16)


def _encode_fp8(builder: Any, value: Any, *, mantissa: int, bias: int, largest: int, infinity: int) -> Any:
    """Round to nearest even; what is finite and beyond the largest number (float32 bits `largest`) becomes that.

    Normal numbers by moving the bits with a rounding carry; subnormal ones by adding the power of two whose last place
    is theirs, which makes the float adder round. e4m3 has no infinity: it becomes NaN.
    """
    cut = 23 - mantissa
    bits = builder.bitcast(value, _I32)
    sign = builder.and_(builder.lshr(bits, _I32(24)), _I32(0x80))
    size = builder.and_(bits, _I32(0x7FFFFFFF))
    kept = builder.select(builder.icmp_unsigned(">", size, _I32(largest)), _I32(largest), size)
    odd = builder.and_(builder.lshr(kept, _I32(cut)), _I32(1))
    rebased = ((bias - 127) << 23) + (1 << (cut - 1)) - 1
    normal = builder.lshr(builder.add(builder.add(kept, odd), _I32(rebased)), _I32(cut))
    adder = 127 + cut + 1 - bias
    sum_bits = builder.bitcast(builder.fadd(builder.bitcast(kept, _F32), ir.Constant(_F32, 2.0 ** (adder - 127))), _I32)
    subnormal = builder.sub(sum_bits, _I32(adder << 23))
    is_small = builder.icmp_unsigned("<", size, _I32((128 - bias) << 23))
    finite = builder.select(is_small, subnormal, normal)
    is_nan = builder.icmp_unsigned(">", size, _I32(0x7F800000))
    special = builder.select(is_nan, _I32(0x7F), _I32(infinity))
    is_special = builder.icmp_unsigned(">=", size, _I32(0x7F800000))
    return builder.trunc(builder.or_(sign, builder.select(is_special, special, finite)), _I8)


@helper()
def exp2(x: float) -> float:
    """2^x in float32 for x ≤ 0, relative error below 3e-7; 0 below −126; NaN stays NaN.

    Rounds by LLVM's `rint`: the usual trick of adding a large constant is undone by `reassoc`, which numba applies to
    inlined helpers as well (measured: 40 % error).
    """
    whole = _round(x)
    f = x - whole
    p = types.float32(1.5403530e-4)
    p = p * f + types.float32(1.3333558e-3)
    p = p * f + types.float32(9.6181291e-3)
    p = p * f + types.float32(5.5504109e-2)
    p = p * f + types.float32(2.4022651e-1)
    p = p * f + types.float32(6.9314718e-1)
    p = p * f + types.float32(1.0)
    return types.float32(0.0) if x < types.float32(-126.0) else p * _two_to_the(whole)
