"""Every fault of a suite file at once, each with its line, its key and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.spec.load import load_suite
from tests.spec.build import errors_in

HEAD = 'name = "t"\n[engine]\nblock_size = 16\n'


def test_all_faults_are_listed_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text = (
        'name = "t"\n[engine]\nblock_sise = 8\nkv_dtype = "bf61"\nmax_sequences = true\n'
        '[workload]\nrequests = "32"\n[axes]\n"engine.eviction" = ["lru", "lfo"]\n"engine.evict" = ["lru"]\n'
    )
    assert errors_in(tmp_path, text) == [
        '3: engine.block_sise: unknown key; did you mean "block_size"?',
        "4: engine.kv_dtype: expected one of fp32, fp16, bf16, fp8_e4m3, fp8_e5m2, int8, "
        'got "bf61"; did you mean "bf16"?',
        "5: engine.max_sequences: expected a whole number from 1 to 65536, got true",
        '7: workload.requests: expected a whole number from 1 to 100000000, got "32" (write it without quotes)',
        "9: axes.engine.eviction: expected one of lru, fifo, lfu, lrc, lrc-age, priority, "
        'got "lfo"; did you mean "lfu"?',
        '10: axes.engine.evict: unknown setting; did you mean "engine.eviction"?',
    ]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("nme = 1\n[engine]\n", 'unknown key; did you mean "name"?'),
        ("[engin]\n", '1: engin: unknown key; did you mean "engine"?'),
        ("[engine]\nrepetitions = 3\n", '2: engine.repetitions: unknown key here; did you mean "measure.repetitions"?'),
        ("engine = 3\n", "1: engine: expected a table, got 3"),
        ("[workload]\narrival.rate = inf\n", "expected a number above 0, got Infinity"),
        ('[engine]\nkv_memory = "8 quarts"\n', "'8 quarts' is not a size in bytes"),
        ("[engine]\nkv_memory = 0\n", "expected a size in bytes such as 64MiB, at least 1, or auto, got 0"),
        (f'[engine]\nkv_memory = "{"9" * 400}GiB"\n', "… is not a size in bytes such as 64MiB"),
        ('[workload]\nscale_tokens = "1/0"\n', "'1/0' is not a ratio such as 1/16"),
        (
            '[workload]\ninput_tokens = { kind = "uniform", low = 9 }\n',
            "2: workload.input_tokens.high: lengths of kind",
        ),
        ('[workload]\narrival = { kind = "poisson" }\n', '2: workload.arrival.kind: kind = "poisson" needs rate'),
        ("[kernel]\nkv_heads = 3\n", "kv_heads 3 must divide query_heads 8"),
        ("", "no cases; expected an [engine] or a [kernel] table"),
        ("[axes]\nengine = [1]\n", "is a whole table; name one of its settings, as in engine."),
        ("[axes]\n'engine.block_size' = []\n", "2: axes.engine.block_size: an axis with no values"),
        ("[axes]\nblock_size = [1]\n", "write the whole key: engine.block_size or kernel.block_size"),
        ("[axes]\nengine.block_size = 8\n", "expected a list of values, got 8; write [8] for one value"),
        ("[axes]\nmeasure.repetitions = [1, 2]\n", "cannot be varied, it holds for the whole run"),
        (
            "[axes]\nengine.block_size = [8,\n 300]\n",
            "3: axes.engine.block_size: expected a whole number from 1 to 256, got 300",
        ),
        (
            "[axes]\nworkload.input_tokens = [{ knd = 1 }]\n",
            "2: axes.workload.input_tokens: knd: unknown key; did you mean",
        ),
        ("axes = 3\n[engine]\n", "1: axes: expected a table of dotted key = value, got 3"),
        ("[axes]\nengine.block_size = [1]\n'engine.block_size' = [2]\n", "given twice, in two spellings; keep one"),
        ("[zip]\n'engine.block_size' = [1]\n", "expected [[zip]], a list of tables, got a table"),
        (
            "[[zip]]\nengine.block_size = [1, 2]\nengine.eviction = ['lru']\n",
            "engine.block_size has 2, engine.eviction has 1",
        ),
        ("[[zip]]\nengine.block_size = [1]\nkernel.block_size = [1]\n", "engine cases or to kernel cases, not to both"),
        ("[[zip]]\n", "an empty group"),
        (
            "[axes]\nengine.block_size = [1]\n[[zip]]\nengine.block_size = [2]\nengine.eviction = ['lru']\n",
            "varied twice, here and by axes.engine.block_size",
        ),
        ("[axes]\nworkload.input_tokens = [1]\n'workload.input_tokens.value' = [2]\n", "varied twice, here and by"),
        (
            "[engine]\n[[exclude]]\nengine.blok_size = 3\n",
            "3: exclude.0.engine.blok_size: unknown setting; did you mean",
        ),
        ("[engine]\n[[only]]\nengine.block_size = 'x'\n", "expected a whole number from 1 to 256"),
        ("[engine]\n[[only]]\nengine.block_size = []\n", "an empty list; expected a value or a list of values"),
        ("[engine]\n[[exclude]]\n", "an empty entry; expected key = value"),
        ("[engine]\n[[exclude]]\nengine.block_size = 1\nkernel.batch = 1\n", "write two entries"),
        ("[engine]\n[[exclude]]\nengine.block_size = 16\n", "2: exclude: leaves none of the 1 combinations"),
        ("[engine]\n[[exclude]]\nengine.block_size = 17\n", "2: exclude.0: matches no case"),
        ("[engine]\nblock_size = 8\n[axes]\nengine.block_size = [8, 16]\n", "2: engine.block_size: is an axis as well"),
        ('[engine]\nhost_memory = "1MiB"\n', '2: engine.host_memory: has no effect while engine.offload is "none"'),
        (
            "[engine]\n[[zip]]\nworkload.output_tokens = [8, 16]\nworkload.arrival.rate = [4, 2]\n",
            "zip.0.workload.arrival.rate: has no effect while workload.arrival.kind has no rate; leave it out",
        ),
        ("[workload]\nsampling.top_k = 3\n", "has no effect while workload.sampling.temperature is 0"),
    ],
)
def test_fault_is_named_with_the_way_out(tmp_path: Path, body: str, wanted: str) -> None:
    """Lines count from the body's first: the name stands on a line before it."""
    name = "" if "nme" in body else 'name = "t"\n'
    errors = errors_in(tmp_path, f"{name}{body}")
    lines = wanted.partition(":")[0]
    shifted = f"{int(lines) + 1}{wanted.removeprefix(lines)}" if lines.isdigit() and name else wanted
    assert any(shifted in error for error in errors), errors


def test_more_than_a_hundred_thousand_cases_are_refused_with_the_count(tmp_path: Path) -> None:
    numbers = list(range(400))
    text = f"{HEAD}[axes]\nworkload.seed = {numbers}\nmodel.seed = {numbers}\n"
    (error,) = errors_in(tmp_path, text)
    assert error == "4: axes: 160,000 combinations; at most 100,000 cases make a suite"


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b'name = "t"\n# \xff\xfe\n', "s.toml:2: not UTF-8 text"),
        (b'name = "t"\nengine = [1\n', "s.toml:2: unclosed array"),
        (b'name = "t"\nname = "u"\n', "s.toml:2: cannot overwrite a value"),
        (b"name = \n", "s.toml:1: invalid value (column 8)"),
        (b"a = " + b"[" * 9000 + b"]" * 9000, "nested too deeply"),
        (b"a = " + b"9" * 9000, "s.toml:1"),
        (b"#" * (1 << 21), "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_suite_is_one_clear_error(tmp_path: Path, raw: bytes, wanted: str) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes(raw)
    with pytest.raises(UsageError) as caught:
        load_suite(file)
    assert wanted in caught.value.message


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("smok", 'no suite named "smok"; did you mean "smoke"?'),
        ("", 'no suite named ""'),
        ("no/such.toml", "no such file: no/such.toml"),
        (".", "is a directory"),
        ("a\x00b.toml", "cannot read"),
        ("\x1b[31mred", "no suite named"),
        ("x" * 5000, "no suite named"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_clear_error(name: str, wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_suite(name)
    assert wanted in caught.value.message
    assert "\x1b" not in caught.value.message


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes(b"\xef\xbb\xbf" + HEAD.replace("\n", "\r\n").encode())
    assert load_suite(file).suite.engine is not None


def test_impossible_combination_is_listed_with_the_exclude_that_removes_it(tmp_path: Path) -> None:
    text = (
        'name = "t"\n[engine]\nhost_memory = "1MiB"\n[axes]\nengine.block_size = [8, 16]\n'
        'engine.prefix_cache = ["none", "hash"]\nengine.offload = ["none", "host"]\n'
    )
    (error,) = errors_in(tmp_path, text)
    exclude = 'exclude = [{ "engine.prefix_cache" = "none", "engine.offload" = "host" }]'
    assert error.startswith("7: engine.offload: ")
    assert exclude in error
    file = tmp_path / "s.toml"
    file.write_text(f"{exclude}\n{text}")
    assert load_suite(file).suite.exclude


def test_combination_that_is_refused_everywhere_asks_for_no_exclude(tmp_path: Path) -> None:
    text = 'name = "t"\n[engine]\noffload = "host"\n[axes]\nengine.block_size = [8, 16]\n'
    errors = errors_in(tmp_path, text)
    assert len(errors) == 2
    assert all(error.startswith("3: engine.offload: ") and "refused in every case" in error for error in errors)


def test_a_quoted_dotted_key_outside_axes_is_explained(tmp_path: Path) -> None:
    (error,) = errors_in(tmp_path, f'"engine.kv_dtype" = "bf16"\n{HEAD}')
    assert error.startswith("1: engine.kv_dtype: unknown key: quoted, its dots are part of the name")


def test_thousands_of_faults_are_counted_and_the_first_ones_shown(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(HEAD + "".join(f"k{number} = 1\n" for number in range(2000)))
    with pytest.raises(UsageError) as caught:
        load_suite(file)
    lines = caught.value.message.splitlines()
    assert lines[0].endswith("has 2000 errors")
    assert lines[1].startswith(f"  {file}:4: engine.k0: unknown key")
    assert lines[-1] == "  … and 1950 more"


def test_more_than_two_hundred_rules_are_refused(tmp_path: Path) -> None:
    (error,) = errors_in(tmp_path, HEAD + "[[exclude]]\nengine.block_size = 8\n" * 201)
    assert error.startswith("4: exclude: 201 entries; at most 200")
