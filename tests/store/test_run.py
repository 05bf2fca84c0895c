from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from kvbench.errors import DataError, UsageError
from kvbench.store import run_folder as writing
from kvbench.store.run import open_run
from kvbench.store.run_folder import RunFolder
from tests.store.samples import case_id, plan, request, run_folder, sample


def finish(folder: RunFolder, fingerprint: str = "f") -> list[tuple[str, int]]:
    """Measure everything that is missing; what was measured."""
    todo = folder.todo()
    for case, number in todo:
        folder.add(sample(int(case, 16), number, fingerprint))
    return todo


def keys(path: Path) -> list[tuple[str, int]]:
    cases = open_run(path).cases
    return list(zip(cases["case_id"], cases["sample"], strict=True))


def test_repetitions_are_the_outer_loop_of_what_is_to_do(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan(2, 2)) as folder:
        assert folder.todo() == [(case_id(c), n) for n in range(2) for c in range(2)]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_run_reads_the_same_sealed_and_unsealed(tmp_path: Path, is_sealed: bool) -> None:
    run = open_run(run_folder(tmp_path, 3, 2, is_sealed=is_sealed))
    assert run.cases["output_tokens_per_s"].tolist() == [100 + c + n / 10 for c in range(3) for n in range(2)]
    assert run.cases["block_size"].tolist() == [8, 8, 16, 16, 24, 24]
    assert (len(run.requests), len(run.steps), len(run.workload)) == (12, 18, 2)
    assert run.requests_of("w" * 64) == [request(0), request(1)]
    assert run.manifest["controlled"]["workloads"]["w" * 64]["input_tokens"]["max"] == 10
    assert run.case_rows[0]["case_id"] == case_id(0)
    assert run.problems == []


def test_sealing_leaves_five_files_with_their_digests_and_can_be_repeated(tmp_path: Path) -> None:
    path = run_folder(tmp_path, is_sealed=True)
    names = {p.name for p in path.iterdir() if not p.name.startswith(".")}
    assert names == {
        "plan.json",
        "manifest.json",
        *(f"{t}.parquet" for t in ("cases", "requests", "steps", "workload")),
    }
    files = json.loads((path / "manifest.json").read_text())["files"]
    assert files == {n: sha256((path / n).read_bytes()).hexdigest() for n in names - {"manifest.json"}}
    before = {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}
    with RunFolder.resume(path, plan()) as folder:
        folder.seal()
    assert {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()} == before


def test_a_long_sweep_seals_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SEAL_EVERY", 5)
    path = run_folder(tmp_path, 6, 2)
    assert len(list((path / "parts").iterdir())) == 2
    assert len(open_run(path).cases) == 12
    assert len(open_run(path).steps) == 36


@pytest.mark.parametrize("is_sealed", [False, True])
def test_m01_more_repetitions_on_resume(tmp_path: Path, is_sealed: bool) -> None:
    """A finished run of 3 repetitions is resumed with 5: the two missing ones run, the three are kept."""
    path = run_folder(tmp_path, 2, 3, is_sealed=is_sealed)
    before = open_run(path).cases["finished_at"].tolist()
    with RunFolder.resume(path, plan(2, 5)) as folder:
        assert finish(folder) == [(case_id(c), n) for n in (3, 4) for c in range(2)]
        folder.seal()
    after = open_run(path).cases
    assert keys(path) == [(case_id(c), n) for c in range(2) for n in range(5)]
    assert after[after["sample"] < 3]["finished_at"].tolist() == before


@pytest.mark.parametrize("is_sealed", [False, True])
def test_m02_changed_settings_on_resume(tmp_path: Path, is_sealed: bool) -> None:
    """Fixed settings change: cases are other cases by content, run anew, and old rows never come back for them."""
    path = run_folder(tmp_path, 2, 2, is_sealed=is_sealed)
    changed = plan(2, 2)
    changed["cases"][1] |= {"case_id": case_id(9), "axes": {"block_size": 80}}
    with RunFolder.resume(path, changed) as folder:
        assert {key for key, _ in keys(path)} == {case_id(0)}
        assert folder.todo() == [(case_id(9), 0), (case_id(9), 1)]
        finish(folder)
        folder.seal()
    run = open_run(path)
    assert set(run.cases["case_id"]) == set(run.steps["case_id"]) == {case_id(0), case_id(9)}
    assert run.plan["cases"][1]["case_id"] == case_id(9)
    assert json.loads(next((path / "superseded").glob("plan.*.json")).read_text())["cases"] == plan(2)["cases"]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_m03_a_failed_repetition_is_retried(tmp_path: Path, is_sealed: bool) -> None:
    """One repetition of three failed; resume measures that one again and keeps the others."""
    with RunFolder.create(tmp_path, plan(1, 3)) as folder:
        for number, status in enumerate(("ok", "crash", "ok")):
            folder.add(sample(0, number, status=status))
        if is_sealed:
            folder.seal()
        path = folder.path
    assert open_run(path).cases["status"].tolist() == ["ok", "crash", "ok"]
    with RunFolder.resume(path, plan(1, 3)) as folder:
        assert open_run(path).cases["status"].tolist() == ["ok", "crash", "ok"]
        assert finish(folder) == [(case_id(0), 1)]
        assert open_run(path).cases["status"].tolist() == ["ok"] * 3
        folder.seal()
    run = open_run(path)
    assert run.cases["status"].tolist() == ["ok"] * 3
    assert len(run.steps) == 9


@pytest.mark.parametrize("is_sealed", [False, True])
def test_m04_changed_kernel_source_on_resume(tmp_path: Path, is_sealed: bool) -> None:
    """The fingerprint of one case changes: it runs anew, its old samples are kept aside and never returned."""
    path = run_folder(tmp_path, 2, 2, is_sealed=is_sealed)
    changed = plan(2, 2)
    changed["cases"][0]["fingerprint"] = "g"
    with RunFolder.resume(path, changed) as folder:
        assert {key for key, _ in keys(path)} == {case_id(1)}
        assert finish(folder, "g") == [(case_id(0), 0), (case_id(0), 1)]
    with RunFolder.resume(path, changed) as folder:
        assert folder.todo() == []
        folder.seal()
    assert open_run(path).cases["fingerprint"].tolist() == ["g", "g", "f", "f"]
    assert list((path / "superseded").iterdir())


def test_a_resume_on_a_changed_machine_keeps_the_earlier_one_on_record(tmp_path: Path) -> None:
    def on(driver: str, load: float) -> dict[str, object]:
        return plan(environment={"controlled": {"driver": driver}, "environment": {}, "volatile": {"load": load}})

    with RunFolder.create(tmp_path, on("550", 0.1)) as folder:
        path = folder.path
    RunFolder.resume(path, on("550", 0.9)).close()
    assert not list(path.glob("superseded/*")), "a reading that moved changes nothing"
    for driver in ("560", "560", "570"):
        RunFolder.resume(path, on(driver, 0.1)).close()
    found = open_run(path).manifest["controlled"]
    assert (found["system"], found["earlier_systems"]) == ({"driver": "570"}, [{"driver": "550"}, {"driver": "560"}])


def test_only_one_process_writes_a_run(tmp_path: Path) -> None:
    path = run_folder(tmp_path)
    with RunFolder.resume(path, plan()), pytest.raises(UsageError, match="another kvbench"):
        RunFolder.resume(path, plan())
    RunFolder.resume(path, plan()).close()


def test_a_workload_is_kept_once(tmp_path: Path) -> None:
    path = run_folder(tmp_path, is_sealed=True)
    with RunFolder.resume(path, plan()) as folder:
        folder.write_workload("w" * 64, [request(0), request(1)])
        assert not (path / "workloads").exists()
        folder.write_workload("x" * 64, [request(5)])
        folder.seal()
    assert open_run(path).workload["workload_digest"].tolist() == ["w" * 64] * 2 + ["x" * 64]


@pytest.mark.parametrize("name", ["cases", "requests", "steps", "workload"])
@pytest.mark.parametrize("damage", ["cut", "remove", "flip", "empty"])
def test_a_damaged_table_is_bad_data_that_names_the_file(tmp_path: Path, name: str, damage: str) -> None:
    path = run_folder(tmp_path, is_sealed=True)
    file = path / f"{name}.parquet"
    data = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        flipped = data[:20] + bytes([data[20] ^ 1]) + data[21:]
        file.write_bytes({"cut": data[: len(data) // 2], "flip": flipped, "empty": b""}[damage])
    with pytest.raises(DataError, match=rf"{name}\.parquet"):
        getattr(open_run(path), name)


@pytest.mark.parametrize("name", ["plan.json", "manifest.json", "seal.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', "\x00\xff", '{"a": "\\ud800"}'])
def test_a_damaged_json_file_is_bad_data_that_names_the_file(tmp_path: Path, name: str, text: str) -> None:
    path = run_folder(tmp_path, is_sealed=True)
    (path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=name):
        _ = open_run(path).cases


@pytest.mark.parametrize("name", ["plan.json", "manifest.json"])
def test_m67_a_run_of_a_newer_version_is_refused(tmp_path: Path, name: str) -> None:
    """A run file written by a newer version: "written by a newer kvbench", exit 2."""
    path = run_folder(tmp_path, is_sealed=True)
    (path / name).write_text(json.dumps({**json.loads((path / name).read_text()), "schema_version": 2}))
    with pytest.raises(UsageError, match="written by a newer kvbench") as caught:
        _ = open_run(path).cases
    assert caught.value.exit_code == 2


def test_what_is_no_run_folder_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match="not a run folder"):
            open_run(path)


def test_a_folder_of_runs_is_refused_with_the_newest_of_them(tmp_path: Path) -> None:
    for at, name in enumerate(("newer", "older")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
        os.utime(tmp_path / name / "plan.json", (1000 - at, 1000 - at))
    with pytest.raises(UsageError, match="not a run folder") as caught:
        open_run(tmp_path)
    assert str(tmp_path / "newer") in str(caught.value.hint)


def test_two_hundred_cases_seal_into_few_row_groups(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = run_folder(tmp_path, 200, 1, is_sealed=True)
    assert len(open_run(path).cases) == 200
    assert pq.ParquetFile(path / "steps.parquet").num_row_groups == 1


def test_steps_of_the_first_sample_of_every_case_are_those_of_the_whole_table(tmp_path: Path) -> None:
    """Sealed, unsealed and half of each; the first sample of a case need not be 0."""
    with RunFolder.create(tmp_path, plan(3, 2)) as folder:
        folder.add(sample(2, 1))
        folder.add(sample(0, 1))
        folder.seal()
        folder.add(sample(0, 0))
        folder.add(sample(1, 0))
        run = open_run(folder.path)
    found, steps = run.first_steps(["t_s", "step"]), run.steps
    assert sorted(found) == [case_id(n) for n in range(3)]
    for name, arrays in found.items():
        mine = steps[steps["case_id"] == name]
        mine = mine[mine["sample"] == mine["sample"].min()]
        assert arrays["step"].tolist() == mine["step"].tolist()
        assert arrays["t_s"].tolist() == mine["t_s"].tolist()


@pytest.mark.parametrize("kept", [16, "none"])
def test_an_axis_that_lost_a_word_on_resume_keeps_its_earlier_samples(tmp_path: Path, kept: object) -> None:
    """`reblock_to = ["none", 16]` is a column of text; of one value left it may be one of numbers."""
    asked = plan(2, 1)
    for case, value in zip(asked["cases"], ("none", 16), strict=True):
        case["axes"] = {"reblock_to": value}
    with RunFolder.create(tmp_path, asked) as folder:
        for number, value in enumerate(("none", 16)):
            folder.add(sample(number, 0, reblock_to=value))
        folder.seal()
    at = 1 if kept == 16 else 0
    narrowed = {**asked, "cases": [asked["cases"][at]], "repetitions": 2}
    with RunFolder.resume(folder.path, narrowed) as again:
        assert again.todo() == [(case_id(at), 1)]
        again.add(sample(at, 1, reblock_to=kept))
        again.seal()
    assert [row["reblock_to"] for row in open_run(folder.path).case_rows] == [kept, kept]
