"""What a compiled kernel takes and does, read from ptxas's report, the SASS and the cubin. Torch-free."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kvbench.errors import DataError

_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_TENSOR_CORE = re.compile(r"(?:UTC)?[HIDBQO]G?MMA")
_BULK = ("UTMALDG", "UBLKCP")
_WIDE = {"128", "256"}


@dataclass(frozen=True, slots=True)
class Resources:
    """One compile. Registers are per thread, bytes of stack and spills per thread, shared memory per block.

    `wide_loads` are the instructions that read 16 bytes or more a thread from global memory (LDG and LDGSTS of 128 or
    256 bits, bulk copies), `narrow_loads` all others that read it; `tensor_core` counts matrix instructions
    (`tensor_core_kind` names them); all as they stand in the SASS, not as often as they run.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    tensor_memory_columns: int
    warps: int
    wide_loads: int
    narrow_loads: int
    tensor_core: int
    tensor_core_kind: str
    code_digest: str

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


def parse_ptxas(log: str) -> tuple[int, int, int, int]:
    """Registers, stack, spill stores and spill loads (bytes) from what `ptxas -v` prints; `DataError` without them."""
    frame, registers = _FRAME.search(log), _REGISTERS.search(log)
    if frame is None or registers is None:
        raise DataError("ptxas did not say what the kernel uses")
    stack, stores, loads = map(int, frame.groups())
    return int(registers.group(1)), stack, stores, loads


@dataclass(frozen=True, slots=True)
class Instructions:
    """Counts over one kernel's SASS; the words of `Resources`."""

    wide_loads: int
    narrow_loads: int
    tensor_core: int
    tensor_core_kind: str


def count_instructions(sass: str) -> Instructions:
    """Loads and matrix instructions in a listing of `nvdisasm` or `cuobjdump -sass`."""
    wide = narrow = 0
    kinds: dict[str, int] = {}
    for opcode in _OPCODE.findall(sass):
        name, *modifiers = opcode.split(".")
        if name in _BULK or (name in ("LDG", "LDGSTS") and _WIDE & set(modifiers)):
            wide += 1
        elif name in ("LDG", "LDGSTS"):
            narrow += 1
        elif _TENSOR_CORE.fullmatch(name):
            kinds[name] = kinds.get(name, 0) + 1
    return Instructions(wide, narrow, sum(kinds.values()), "+".join(sorted(kinds)))


def code_digest(cubin: bytes, *launched_with: int) -> str:
    """Digest of the machine code and its constants, and of what it is launched with (warps, shared memory): line
    tables and names do not count, so that two configurations of one code have one digest."""
    digest = hashlib.sha256(repr(launched_with).encode())
    for name, contents in _sections(cubin):
        if name.startswith((".text.", ".nv.constant")):
            digest.update(name.split(".")[1].encode() + contents)
    return digest.hexdigest()[:16]


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and contents of every section of a 64-bit little-endian ELF file (System V ABI, chapter 4)."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise DataError("the compiler's output is no 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
    names = headers[names_at][4]
    for name, kind, _, _, start, length in headers:
        text = elf[names + name : elf.index(b"\0", names + name)].decode()
        yield text, b"" if kind == 8 else elf[start : start + length]  # 8: SHT_NOBITS, takes no room in the file
