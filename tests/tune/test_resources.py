"""What is read from ptxas, from SASS and from a cubin."""

from __future__ import annotations

import struct

import pytest

from kvbench.errors import DataError
from kvbench.tune.resources import code_digest, count_instructions, parse_ptxas

SPILLING = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'decode' for 'sm_90a'
ptxas info    : Function properties for decode
    64 bytes stack frame, 72 bytes spill stores, 116 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes cmem[0]
"""
SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/              @P0  LDG.E.EF.128 R8, desc[UR4][R2.64] ;
        /*0030*/             @!P1  LDGSTS.E.BYPASS.LTC128B.128 [R7], desc[UR6][R4.64] ;
        /*0040*/                   LDGSTS.E.LTC128B [R7], desc[UR6][R4.64] ;
        /*0050*/                   LDG.E.LTC128B.64 R4, [R2.64] ;
        /*0060*/                   LDG.E R9, [R2.64] ;
        /*0070*/                   LDG.E.ENL2.256 R4, R8, desc[UR4][R2.64] ;
        /*0080*/             @UP0  UTMALDG.2D [UR8], [UR4] ;
        /*0090*/                   STG.E.128 [R2.64], R4 ;
        /*00a0*/                   LDS.128 R4, [R2] ;
        /*00b0*/                   LDGDEPBAR ;
        /*00c0*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*00d0*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*10e0*/                   UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4], tmem[UR6], idesc[UR7] ;
        /*10f0*/                   FFMA R1, R2, R3, R4 ;
        /*1100*/                   IMMA.16816.S8.S8 R8, R4.ROW, R6.COL, R8 ;
"""


def test_registers_stack_and_spills_are_what_ptxas_said() -> None:
    assert parse_ptxas(SPILLING) == (255, 64, 72, 116)


def test_a_silent_ptxas_is_an_error_and_not_a_kernel_without_spills() -> None:
    with pytest.raises(DataError, match="ptxas did not say"):
        parse_ptxas("ptxas info    : 0 bytes gmem\n")


def test_wide_loads_and_matrix_instructions_are_told_from_their_neighbours() -> None:
    found = count_instructions(SASS)
    assert found.wide_loads == 5, "LDG.128, LDG.EF.128, LDGSTS.128, LDG.256 and the bulk copy"
    assert found.narrow_loads == 3, "LTC128B is a prefetch hint and no width"
    assert (found.tensor_core, found.tensor_core_kind) == (4, "HGMMA+HMMA+IMMA+UTCHMMA")


def elf(sections: dict[str, bytes]) -> bytes:
    """A 64-bit ELF file with these sections, laid out by the System V ABI."""
    names, at, headers, body = b"\0", 64, [b"\0" * 64], b""
    for name, contents in (*sections.items(), (".shstrtab", b"")):
        start = len(names)
        names += name.encode() + b"\0"
        contents = contents if name != ".shstrtab" else names
        headers.append(struct.pack("<IIQQQQIIQQ", start, 1, 0, 0, at + len(body), len(contents), 0, 0, 1, 0))
        body += contents
    head = b"\x7fELF\x02\x01" + b"\0" * 10 + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, at + len(body), 0, 64, 0, 0,
                                                         64, len(headers), len(headers) - 1)  # fmt: skip
    return head + body + b"".join(headers)


def test_equal_code_has_one_digest_whatever_its_names_and_lines() -> None:
    one = elf({".text.decode": b"code", ".debug_line": b"1", ".nv.constant0.decode": b"\0\0"})
    moved = elf({".debug_line": b"12345", ".text.decode_1": b"code", ".nv.constant0.decode_1": b"\0\0"})
    other = elf({".text.decode": b"cod3", ".debug_line": b"1", ".nv.constant0.decode": b"\0\0"})
    constants = elf({".text.decode": b"code", ".nv.constant0.decode": b"\0\1"})
    assert code_digest(one, 4, 1024) == code_digest(moved, 4, 1024)
    assert len({code_digest(cubin, 4, 1024) for cubin in (one, other, constants)}) == 3


def test_equal_code_with_other_warps_or_shared_memory_is_another_launch() -> None:
    cubin = elf({".text.decode": b"code"})
    assert len({code_digest(cubin, *with_) for with_ in ((4, 1024), (8, 1024), (4, 2048))}) == 3


def test_what_is_no_cubin_is_an_error() -> None:
    with pytest.raises(DataError, match="no 64-bit ELF"):
        code_digest(b"not a cubin at all", 4)
