"""Suite files mangled at random: they load and expand, or say why not; nothing else ever comes out."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.errors import KvbenchError
from kvbench.paths import suites_dir
from kvbench.spec.cases import expand
from kvbench.spec.keys import all_keys
from kvbench.spec.load import from_effective, load_suite
from kvbench.spec.overrides import apply_overrides

SEEDS = 4
SECONDS = 3.5
VALUES = (
    "0", "-1", "1e400", "nan", "-inf", '""', "'x'", "true", "[]", "{}", "[[1], []]", "{ a = 1 }", "1979-05-27",
    "07:32:00", "9" * 30, "9" * 5000, '"\\u0000"', '"8MiB"', '"1/0"', '"-1GiB"', '"9e999GiB"', '"bfloat16"', "0x10",
    "[1, 1, 1]", "['none', 'host']", "[{ kind = 'uniform', low = 9, high = 1 }]", '"""a\nb"""', "[true, 1.0]", "[nan]",
)  # fmt: skip
LINES = ("[axes]", "[[zip]]", "[[exclude]]", "[[only]]", "[engine]", "[axes.workload]", "[[axes]]", "[zip]", "]", '"""')


def flip_bytes(raw: bytes, rng: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def cut(raw: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(raw)) for _ in range(2))
    return raw[:start] + (b"" if rng.random() < 0.5 else raw[start:end] * 3) + raw[end:]


def replace_value(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.decode().splitlines()
    at = rng.choice([i for i, line in enumerate(lines) if "=" in line])
    lines[at] = f"{lines[at].partition('=')[0]}= {rng.choice(VALUES)}"
    return "\n".join(lines).encode()


def replace_key(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.decode().splitlines()
    at = rng.choice([i for i, line in enumerate(lines) if "=" in line])
    key = rng.choice([*all_keys(), "engine", "", "a.b.c", '"\\u007f"', "measure.seed"])
    lines[at] = f"{rng.choice([key, repr(key), key.rpartition('.')[2]])} = {lines[at].partition('=')[2]}"
    return "\n".join(lines).encode()


def insert_line(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.decode().splitlines()
    key = rng.choice(list(all_keys()))
    line = rng.choice([*LINES, f"{key} = {rng.choice(VALUES)}", f"'{key}' = [{rng.choice(VALUES)}]"])
    lines.insert(rng.randrange(len(lines)), line)
    return "\n".join(lines).encode()


def change_digit(raw: bytes, rng: random.Random) -> bytes:
    at = rng.choice([i for i, byte in enumerate(raw) if 48 <= byte <= 57])
    return raw[:at] + rng.choice(b"0123456789").to_bytes() + raw[at + 1 :]


def drop_line(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.decode().splitlines()
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines).encode()


def shuffle_lines(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.decode().splitlines()
    rng.shuffle(lines)
    return "\n".join(lines).encode()


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bytes, cut, replace_value, replace_value, replace_key, insert_line, insert_line, shuffle_lines,
    change_digit, change_digit, drop_line, drop_line,
)  # fmt: skip


def loads_and_can_be_used(file: Path, rng: random.Random) -> bool:
    try:
        loaded = load_suite(file)
    except KvbenchError:
        return False
    assert expand(loaded.suite)
    again = from_effective(loaded.effective)
    assert (again.suite, again.digest) == (loaded.suite, loaded.digest)
    key, value = rng.choice(list(all_keys())), rng.choice(VALUES)
    with contextlib.suppress(KvbenchError):
        apply_overrides(loaded, [f"{rng.choice([key, key.rpartition('.')[2]])}={value}"])
    return True


@pytest.mark.parametrize("seed", range(SEEDS))
def test_mangled_suites_load_or_say_why_not(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    texts = [path.read_bytes() for path in sorted(suites_dir().glob("*.toml"))]
    file = tmp_path / "fuzzed.toml"
    stop = time.monotonic() + SECONDS
    tried = loaded = 0
    while tried < 400 and time.monotonic() < stop:
        raw = rng.choice(texts)
        for _ in range(rng.randint(1, 2)):
            with contextlib.suppress(UnicodeDecodeError, IndexError, ValueError):
                raw = rng.choice(MUTATIONS)(raw, rng)
        file.write_bytes(raw)
        tried += 1
        loaded += loads_and_can_be_used(file, rng)
    assert loaded, "a mutation that always breaks the file tests little"
