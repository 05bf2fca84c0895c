"""Single elements of a KV block as float32: loads that decode, the stores' encodings, and exp2.

The array's element type says what is stored: float32; uint16 = bf16 bits; int16 = fp16 bits; int8.
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
    return stored.astype(np.float64)


@intrinsic
def fetch(typing_context: Any, array: Any, index: Any) -> Any:
    """`array[index]` decoded to float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(context, builder, signature, args)
        return decode(builder, builder.load(place), signature.args[0].dtype)

    return types.float32(array, types.intp), generate


@intrinsic
def put(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """`array[index] = value`, a float32 encoded as `array` stores it; round to nearest even."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        encoded = _encode(builder, args[2], signature.args[0].dtype)
        builder.store(encoded, pointer(context, builder, signature, args))
        return context.get_dummy_value()

    return types.none(array, types.intp, types.float32), generate


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


def _encode(builder: Any, value: Any, dtype: Any) -> Any:
    if dtype == types.float32:
        return value
    if dtype == types.int8:
        return builder.fptosi(builder.call(builder.module.declare_intrinsic("llvm.rint", [_F32]), [value]), _I8)
    if dtype == types.uint16:
        return _encode_bfloat(builder, value)
    if dtype == types.int16:
        return _encode_half(builder, value) if HAS_HALF else _encode_half_by_bits(builder, value)
    raise TypeError(f"no KV element is stored as {dtype}")


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
