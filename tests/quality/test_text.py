"""Text to token ids and ids to windows: the checkpoint's own tokenizer, bytes, ids from files, and what is refused."""

from __future__ import annotations

import builtins
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.errors import CannotRunError, UsageError
from kvbench.workload.text import TokenText, read_ids, read_text, windows_of

HOSTILE = "Grüße, 漢字 🙂\r\n\ttail\x00".encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    return path


def config(folder: Path, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def file(tmp_path: Path, data: bytes, name: str = "text.txt") -> Path:
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


def test_bytes_are_their_values_whatever_they_are(tmp_path: Path, folder: Path) -> None:
    config(folder, kvbench_tokenizer="bytes")
    path = file(tmp_path, HOSTILE + b"\xff\xfe")
    found = read_text(folder, [path], 256)
    assert bytes(found.documents[0].tolist()) == HOSTILE + b"\xff\xfe"
    assert found.prefix == ()
    assert found.files[0]["bytes"] == found.tokens == len(HOSTILE) + 2


def test_a_first_token_of_its_own_begins_every_window_of_bytes(tmp_path: Path, folder: Path) -> None:
    config(folder, kvbench_tokenizer="bytes", bos_token_id=256)
    assert read_text(folder, [file(tmp_path, b"abc")], 257).prefix == (256,)
    assert read_text(folder, [file(tmp_path, b"abc")], 256).prefix == ()


def tokenizer_file(folder: Path, *, begins: bool) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<s>": 0, "<unk>": 1, "the": 2, "cat": 3, "sat": 4, "a": 5}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>"])
    if begins:
        template = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        made.post_processor = template
    made.enable_truncation(2)
    made.save(str(folder / "tokenizer.json"))
    return made


@pytest.mark.parametrize("begins", [True, False])
def test_the_checkpoints_tokenizer_is_used_whole_and_its_first_token_is_known(
    tmp_path: Path, folder: Path, begins: bool
) -> None:
    tokenizer_file(config(folder), begins=begins)
    found = read_text(folder, [file(tmp_path, b"the cat sat the dog")], 6)
    assert found.documents[0].tolist() == [2, 3, 4, 2, 1]
    assert found.prefix == ((0,) if begins else ())
    assert found.tokenizer.startswith("tokenizer.json (tokenizers ")


def test_text_that_is_not_utf8_says_where(tmp_path: Path, folder: Path) -> None:
    tokenizer_file(config(folder), begins=False)
    with pytest.raises(UsageError, match="not UTF-8: byte 4 is 0xff"):
        read_text(folder, [file(tmp_path, b"the \xff cat")], 6)


def test_without_the_package_there_is_a_way_out(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer_file(config(folder), begins=False)
    whole = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return whole(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CannotRunError, match="tokenizers") as error:
        read_text(folder, [file(tmp_path, b"the cat")], 6)
    assert "--tokens" in str(error.value.hint)


@pytest.mark.parametrize(
    ("values", "said"),
    [({}, "no tokenizer.json"), ({"kvbench_tokenizer": "words"}, "'words'"), ({"kvbench_tokenizer": None}, "None")],
)
def test_a_checkpoint_that_does_not_say_how_is_refused(
    tmp_path: Path, folder: Path, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        read_text(config(folder, **values), [file(tmp_path, b"abc")], 300)


def test_a_damaged_tokenizer_is_no_traceback(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("tokenizers")
    config(folder)
    for damage in (b"{", b"[]", b"{}", b"\xff"):
        (folder / "tokenizer.json").write_bytes(damage)
        with pytest.raises(UsageError, match="not a tokenizer"):
            read_text(folder, [file(tmp_path, b"abc")], 300)


def zipped(**arrays: Any) -> bytes:
    """What `np.savez` writes."""
    kept = io.BytesIO()
    np.savez(kept, **arrays)
    return kept.getvalue()


def test_ids_come_from_text_and_from_arrays(tmp_path: Path) -> None:
    words = file(tmp_path, b" 5 6\n7\t8 ", "ids.txt")
    np.save(tmp_path / "ids.npy", np.array([5, 6, 7, 8], np.uint16))
    found = read_ids([words, tmp_path / "ids.npy"], 9)
    assert [ids.tolist() for ids in found.documents] == [[5, 6, 7, 8]] * 2


@pytest.mark.parametrize("data", [b"1 2 x", b"1.5", b"\xff\xfe", b"99999999999999999999"])
def test_what_holds_no_ids_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UsageError, match="no list of token ids"):
        read_ids([file(tmp_path, data)], 9)


def test_a_file_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.workload.text.LARGEST_FILE_BYTES", 1 << 16)
    with pytest.raises(UsageError, match="larger than"):
        read_ids([Path("/dev/zero")], 9)


@pytest.mark.parametrize("data", [b"1 2 3", b"", zipped(a=np.arange(3)), pickle.dumps([1, 2])])
def test_what_is_named_an_array_and_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UsageError, match="no list of token ids") as refused:
        read_ids([file(tmp_path, data, "ids.npy")], 9)
    assert "allow_pickle" not in refused.value.message


@pytest.mark.parametrize("values", [np.zeros((2, 2), int), np.zeros(3), np.array([{}], object)])
def test_an_array_of_something_else_is_refused(tmp_path: Path, values: Any) -> None:
    np.save(tmp_path / "ids.npy", values, allow_pickle=True)
    with pytest.raises(UsageError, match="no list of token ids"):
        read_ids([tmp_path / "ids.npy"], 9)


def test_ids_outside_the_vocabulary_are_counted(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"2 of 4 token ids are outside .* 8, such as -1"):
        read_ids([file(tmp_path, b"1 -1 900 7")], 8)
    with pytest.raises(UsageError, match="with a vocabulary of 200"):
        read_text(config(folder, kvbench_tokenizer="bytes"), [file(tmp_path, b"abc")], 200)


def text(*sizes: int, prefix: tuple[int, ...] = ()) -> TokenText:
    ids = [np.arange(size, dtype=np.int64) + 1000 * at for at, size in enumerate(sizes)]
    return TokenText(tuple(ids), prefix, "ids", ())


@pytest.mark.parametrize("count", [2, 5, 1000])
def test_windows_are_spread_over_the_text_and_none_is_measured_and_held_out(count: int) -> None:
    found = windows_of(text(1005, 7, 330), 10, count, 3)
    rows = [tuple(row) for row in (*found.measured, *found.held_out)]
    assert found.available == 133
    assert len(found.measured) == min(count, 130)
    assert len(found.held_out) == 3
    assert len(set(rows)) == len(rows)
    assert all(row == tuple(range(row[0], row[0] + 10)) for row in rows)
    assert all(row[0] % 1000 % 10 == 0 for row in rows)
    if count >= 5:
        assert found.measured.max() >= 2000


def test_every_window_begins_with_the_prefix() -> None:
    found = windows_of(text(40, prefix=(7, 8)), 6, 4, 1)
    assert found.measured[:, :2].tolist() == [[7, 8]] * 4
    assert found.measured.shape == (4, 6)


@pytest.mark.parametrize(("size", "tokens"), [(0, 8), (1, 8), (23, 8), (24, 9)])
def test_a_text_too_short_says_how_short(size: int, tokens: int) -> None:
    with pytest.raises(UsageError, match="too short"):
        windows_of(text(size), tokens, 16, 4)
    assert len(windows_of(text(24), 8, 16, 4).measured) == 2


def test_a_window_has_room_for_more_than_the_prefix() -> None:
    with pytest.raises(UsageError, match="no room"):
        windows_of(text(100, prefix=(1, 2)), 3, 16, 4)
