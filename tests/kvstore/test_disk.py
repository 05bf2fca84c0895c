"""Blocks as files: what comes back is what was written for that key, or nothing; folders go with their owners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from kvbench.cache.transfers import Transfers
from kvbench.engine.copies import Outcome
from kvbench.engine.kvstore import disk as disk_module
from kvbench.engine.kvstore.block_file import HEADER_BYTES, BlockFileError, identity_of, read_block, write_block
from kvbench.engine.kvstore.disk import DiskFiles
from kvbench.engine.kvstore.disk_folder import PREFIX, check_disk, open_folder
from kvbench.engine.kvstore.store import KVStore
from kvbench.errors import CannotRunError
from tests.attention.batches import one_layer

IDENTITY = identity_of("a model", "fp32", 16)
KEY, OTHER_KEY = b"k" * 16, b"o" * 16
PAYLOAD = np.arange(512, dtype=np.uint8)


def written(folder: Path) -> Path:
    path = folder / "0.kv"
    write_block(path, IDENTITY, KEY, PAYLOAD)
    return path


def read(path: Path, key: bytes = KEY, identity: bytes = IDENTITY) -> np.ndarray:
    into = np.zeros(512, np.uint8)
    read_block(path, identity, key, into)
    return into


def test_a_block_file_reads_back_the_same_and_leaves_no_part(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert read(path).tobytes() == PAYLOAD.tobytes()
    assert path.stat().st_size == HEADER_BYTES + 512
    assert [entry.name for entry in tmp_path.iterdir()] == ["0.kv"]


def test_e75_bytes_on_disk_belong_to_the_key_that_asks(tmp_path: Path) -> None:
    """A file that holds other contents, or another layout, than those asked for is not believed."""
    path = written(tmp_path)
    with pytest.raises(BlockFileError, match="other contents"):
        read(path, key=OTHER_KEY)
    with pytest.raises(BlockFileError, match="another layout"):
        read(path, identity=identity_of("a model", "fp32", 32))


@pytest.mark.parametrize("at", range(0, HEADER_BYTES + 512, 7))
def test_e75_any_changed_byte_is_noticed(tmp_path: Path, at: int) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(BlockFileError):
        read(path)


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, HEADER_BYTES + 511, HEADER_BYTES + 513])
def test_e75_a_file_that_is_short_or_long_is_noticed(tmp_path: Path, size: int) -> None:
    path = written(tmp_path)
    path.write_bytes((path.read_bytes() + b"x")[:size])
    with pytest.raises(BlockFileError):
        read(path)


def test_e75_a_file_that_is_gone_is_a_miss(tmp_path: Path) -> None:
    with pytest.raises(BlockFileError, match="cannot be read"):
        read(tmp_path / "never.kv")


def tiered_store(base: Path, *, disk_blocks: int = 8) -> tuple[KVStore, Path]:
    """Eight device blocks of different contents, four host blocks, files."""
    folder = open_folder(base)
    geometry = one_layer(2, 8, layers=3)
    one = KVStore(geometry, "int8", 4, 8).block_bytes
    store = KVStore(
        geometry, "int8", 4, 8, host_blocks=4, disk=DiskFiles(folder, one, IDENTITY), disk_blocks=disk_blocks
    )
    store.pool.bytes.random_(0, 256)
    return store, folder.path


def finish(store: KVStore, first: Outcome) -> Outcome:
    """All that ended, of the copies begun with `first` as the answer."""
    whole = first
    for _ in range(1000):
        more = store.poll(wait=True)
        if not len(more):
            return whole
        whole.done.extend(more.done)
        whole.failed.extend(more.failed)
        whole.disk_error = whole.disk_error or more.disk_error
    pytest.fail("copies never end")


def send_down(store: KVStore, disk_block: int = 3) -> Outcome:
    """Device block 2 to the host and on to disk."""
    store.start(Transfers(offload_device=[2], offload_host=[1]))
    return finish(store, store.start(Transfers(demote_host=[1], demote_disk=[disk_block], demote_keys=[KEY])))


def bring_up(store: KVStore, disk_block: int = 3, key: bytes = KEY) -> Outcome:
    load = Transfers(load_disk=[disk_block], load_device=[7], load_keys=[key])
    return finish(store, store.start(load))


def test_bytes_go_down_to_disk_and_come_back_scales_included(tmp_path: Path) -> None:
    store, _ = tiered_store(tmp_path)
    before = store.pool.bytes.clone()
    assert send_down(store).done.demote_disk == [3]
    assert bring_up(store).done.load_device == [7]
    assert (store.pool.bytes[:, 7] == before[:, 2]).all()
    assert (store.pool.bytes[:, :7] == before[:, :7]).all()
    store.close()


def test_e70_the_host_block_may_be_overwritten_at_once(tmp_path: Path) -> None:
    """The bytes for the file were taken when the demotion began: what overwrites the block in the same call, and
    again before the file is there, does not reach it."""
    store, _ = tiered_store(tmp_path)
    before = store.pool.bytes[:, 2].clone()
    store.start(Transfers(offload_device=[2], offload_host=[1]))
    began = store.start(
        Transfers(demote_host=[1], demote_disk=[3], demote_keys=[KEY], offload_device=[5], offload_host=[1])
    )
    store.hosts[0][1] = 0
    finish(store, began)
    bring_up(store)
    assert (store.pool.bytes[:, 7] == before).all()
    store.close()


def test_e75_a_load_for_another_key_fails_and_is_not_delivered(tmp_path: Path) -> None:
    store, _ = tiered_store(tmp_path)
    send_down(store)
    before = store.pool.bytes.clone()
    assert bring_up(store, key=OTHER_KEY).failed.load_disk == [3]
    assert (store.pool.bytes == before).all()
    store.close()


def test_a_load_that_follows_its_write_waits_for_it(tmp_path: Path) -> None:
    store, _ = tiered_store(tmp_path)
    before = store.pool.bytes[:, 2].clone()
    store.start(Transfers(offload_device=[2], offload_host=[1]))
    store.start(Transfers(demote_host=[1], demote_disk=[3], demote_keys=[KEY]))
    assert bring_up(store).done.load_device == [7]
    assert (store.pool.bytes[:, 7] == before).all()
    store.close()


def test_e73_with_the_staging_memory_full_a_demotion_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk stands still: as many blocks as may be staged wait, the next is refused without waiting."""
    monkeypatch.setattr(disk_module, "STAGING_BYTES", 0)
    gate = threading.Event()
    monkeypatch.setattr(disk_module, "write_block", lambda *_: gate.wait(20))
    store, _ = tiered_store(tmp_path, disk_blocks=20)
    outcome = Outcome()
    for block in range(9):
        began = store.start(Transfers(demote_host=[0], demote_disk=[block], demote_keys=[KEY]))
        outcome.failed.extend(began.failed)
    assert outcome.failed.demote_disk == [8]
    gate.set()
    store.close()


def test_a_disk_that_fills_up_is_switched_off_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_module, "write_block", full)
    store, _ = tiered_store(tmp_path)
    outcome = send_down(store)
    assert outcome.failed.demote_disk == [3]
    assert "No space left" in str(outcome.disk_error)
    assert store.start(Transfers(demote_host=[1], demote_disk=[4], demote_keys=[KEY])).failed.demote_disk == [4]
    store.close()


def test_close_ends_the_threads_and_removes_the_folder(tmp_path: Path) -> None:
    store, folder = tiered_store(tmp_path)
    send_down(store)
    assert [path.name for path in folder.glob("*.kv")] == ["3.kv"]
    store.reset()
    assert list(folder.glob("*.kv")) == []
    store.close()
    store.close()
    assert not folder.exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvbench-")]


def test_a_folder_that_a_killed_process_left_is_removed_and_a_living_one_is_not(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from kvbench.engine.kvstore.disk_folder import open_folder\n"
        f"folder = open_folder(Path({str(tmp_path)!r})); (folder.path / '0.kv').write_bytes(b'x')\n"
        "print(folder.path, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        mine = open_folder(tmp_path)
        assert left.exists()
        owner.send_signal(signal.SIGKILL)
    again = open_folder(tmp_path)
    assert not left.exists()
    assert mine.path.exists()
    for folder in (mine, again):
        folder.remove()
    assert list(tmp_path.glob(PREFIX + "*")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CannotRunError, match="cannot write to"):
        check_disk(tmp_path / "tier", 1)


def test_a_disk_that_is_too_small_or_no_folder_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match="does not fit") as caught:
        check_disk(tmp_path, 1 << 60)
    assert "disk_path" in str(caught.value.hint)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CannotRunError, match="cannot write to"):
        check_disk(tmp_path / "file", 1)
