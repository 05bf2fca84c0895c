"""Sweeps under the virtual clock: without torch, the same every time, labelled, apart from measured ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import kvbench
from kvbench.cli.main import run as command_line
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.rates import write_rates
from kvbench.costmodel.roofline import roofline
from kvbench.spec.load import LoadedSuite, suite_names
from kvbench.store.run import open_run
from tests.store.test_torch_free import BLOCK
from tests.sweep.conftest import MINI

TRACE = Path(__file__).parent.parent / "fixtures" / "traces" / "azure2023.csv"
REAL = {"started_at", "finished_at", "case_s", "peak_rss_bytes", "extra", "run_id"}
"""Columns that go by the real clock and the real machine."""


MOVES_CONTENTS = ("reblocking", "smoke")
"""Suites with cases that re-block: they are skipped with the reason, for the virtual clock has no contents to move."""


def sweep(out: Path, *arguments: str, code: int = 0) -> kvbench.Run:
    assert command_line(["sweep", *arguments, "--clock", "virtual", "--out", str(out)]) == code
    return open_run(next(path.parent for path in out.glob("*/plan.json")))


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "mini.toml"
    path.write_text(MINI)
    return str(path)


def test_every_shipped_suite_runs_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    work = """
from kvbench.cli.main import run
from kvbench.paths import suites_dir
for name in sys.argv[3:]:
    few = ["--trace", sys.argv[2], "--limit", "5"] if name == "traffic" else ["-a", "requests=6"]
    few = [] if '"workload.requests"' in (suites_dir() / f"{name}.toml").read_text() else few
    few += ["-a", "acceptance_rate=0.7"] if name == "speculative" else []
    code = run(["sweep", name, "--clock", "virtual", "--out", sys.argv[1] + "/" + name, *few])
    assert code == (3 if name in MOVES_CONTENTS else 0), (name, code)
"""
    command = [
        sys.executable,
        "-c",
        f"MOVES_CONTENTS = {MOVES_CONTENTS}\n{BLOCK}{work}",
        str(tmp_path),
        str(TRACE),
        *suite_names(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in suite_names():
        found = open_run(next((tmp_path / name).glob("*/plan.json")).parent)
        cases = found.cases
        moves = cases["reblock_to"].fillna("none") != "none" if name in MOVES_CONTENTS else cases["status"] != "ok"
        assert set(cases["status"][~moves]) == {"ok"}, name
        assert set(cases["status"][moves]) == ({"skipped"} if name in MOVES_CONTENTS else set()), name
        assert set(found.cases["clock"]) == {"virtual"}, name


def test_two_runs_hold_the_same_bits(tmp_path: Path) -> None:
    first, second = (sweep(tmp_path / name, "smoke", code=3) for name in ("one", "two"))
    for table in ("cases", "requests", "steps", "workload"):
        one, two = (pq.read_table(found.path / f"{table}.parquet") for found in (first, second))
        kept = [name for name in one.column_names if name not in REAL]
        assert one.num_rows
        assert one.select(kept).equals(two.select(kept)), table


def test_virtual_numbers_say_so_everywhere(tmp_path: Path, suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = sweep(tmp_path / "out", suite)
    printed = capsys.readouterr()
    assert "VIRTUAL CLOCK" in printed.out
    assert "virtual clock: no device is timed; H100-SXM" in printed.err
    assert "ok  virtual, " in printed.err
    for table in (found.cases, found.requests, found.steps):
        assert set(table["clock"]) == {"virtual"}
    assert set(found.cases["cost_model"]) == {"roofline"}
    assert set(found.cases["device_name"]) == {"H100-SXM"}
    assert found.manifest["controlled"]["clock"] == "virtual"
    assert found.manifest["controlled"]["cost_model"]["label"] == "roofline"
    for form, label in (("csv", ",virtual,"), ("json", '"clock": "virtual"'), ("md", "VIRTUAL CLOCK")):
        command_line(["report", str(found.path), "--format", form])
        assert label in capsys.readouterr().out


def test_any_device_and_any_size_of_model(tmp_path: Path, suite: str) -> None:
    sizes = ["-a", "kv_memory=auto", "-a", "attention=auto"]
    large = sweep(tmp_path / "a", suite, "-a", "model.name=llama-3.1-70b", "--virtual-device", "MI300X", *sizes)
    small = sweep(tmp_path / "b", suite, "-a", "model.name=llama-3.1-8b", "--virtual-device", "l4", *sizes)
    assert set(large.cases["status"]) == {"ok"} == set(small.cases["status"])
    assert set(large.cases["device_name"]) == {"MI300X"}
    # 192 GB less 141 GB of weights, and 24 GB less 16
    assert 20 << 30 < large.cases["kv_capacity_bytes"].max() < 60 << 30
    assert 3 << 30 < small.cases["kv_capacity_bytes"].max() < 8 << 30


def test_what_does_not_fit_the_virtual_device_is_refused(
    tmp_path: Path, suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = command_line(
        ["sweep", suite, "--clock", "virtual", "-a", "model.name=llama-3.1-70b", "--out", str(tmp_path / "out")]
    )
    assert code == 4
    assert "131 GiB" in capsys.readouterr().err


def test_rates_of_a_file_replace_the_roofline(tmp_path: Path, suite: str) -> None:
    slow = roofline(virtual_device("cpu")).rates
    write_rates(tmp_path / "slow.json", slow, name="slow", source="a test")
    plain = sweep(tmp_path / "a", suite)
    other = sweep(tmp_path / "b", suite, "-a", f"cost_model={tmp_path / 'slow.json'}")
    assert set(other.cases["cost_model"].str.startswith("slow (")) == {True}
    assert (other.cases["tpot_p50_s"].isna() == plain.cases["tpot_p50_s"].isna()).all()
    assert (other.cases["wall_s"] > plain.cases["wall_s"]).all()
    assert list(other.cases["case_id"]) == list(plain.cases["case_id"])
    assert not set(other.cases["fingerprint"]) & set(plain.cases["fingerprint"])


def test_no_run_holds_both_clocks(
    tmp_path: Path, mini: Callable[..., LoadedSuite], suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    virtual = sweep(tmp_path / "out", suite)
    assert command_line(["sweep", "--resume", str(virtual.path), "--clock", "wall"]) == 2
    assert command_line(["sweep", suite, "--resume", str(virtual.path)]) == 2
    assert "cannot go on by the wall clock" in capsys.readouterr().err
    plan = json.loads((virtual.path / "plan.json").read_text())
    (virtual.path / "plan.json").write_text(json.dumps({**plan, "clock": "wall"}))
    assert command_line(["sweep", suite, "--resume", str(virtual.path), "--clock", "virtual"]) == 2


def test_a_run_resumed_by_name_stays_virtual_and_equal_samples_are_equal(tmp_path: Path, suite: str) -> None:
    first = sweep(tmp_path / "out", suite)
    assert command_line(["sweep", "--resume", str(first.path), "-r", "3"]) == 0
    again = open_run(first.path)
    assert len(again.cases) == 6
    metrics = again.cases.groupby("case_id")[["wall_s", "ttft_mean_s", "output_tokens_per_s"]].nunique()
    assert (metrics == 1).all().all()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--virtual-device", "L4"],
        ["-a", "cost_model=roofline"],
        ["--clock", "virtual", "--virtual-device", "abacus"],
        ["--clock", "virtual", "--virtual-device", "24GiB"],
        ["--clock", "virtual", "-a", "cost_model=none.json"],
    ],
)
def test_what_has_no_effect_or_does_not_exist_is_refused(
    suite: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(["sweep", suite, *arguments]) == 2
    assert "hint:" in capsys.readouterr().err


def test_a_dry_run_says_that_nothing_is_timed(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["sweep", suite, "--clock", "virtual", "--dry-run"]) == 0
    assert "virtual clock: H100-SXM by roofline" in capsys.readouterr().out
