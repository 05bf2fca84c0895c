"""A user's text as token ids of a checkpoint, and windows of it.

The checkpoint's own `tokenizer.json` makes the ids (by the package tokenizers, which kvbench does not need otherwise);
a checkpoint whose `config.json` says `"kvbench_tokenizer": "bytes"` reads UTF-8 or any other bytes, the id of a byte
being its value; ids that somebody else made come from a file.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import CannotRunError, UsageError
from kvbench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

Ids = NDArray[np.int64]
BYTES_KEY = "kvbench_tokenizer"
TOKENIZER_FILE = "tokenizer.json"
LARGEST_FILE_BYTES = 1 << 30
_BYTE_VALUES = 256


@dataclass(frozen=True, slots=True)
class TokenText:
    """Documents as token ids `[tokens]`, integers of some width. `prefix` is what the tokenizer puts before a text
    (often one token), and `tokenizer` how the ids came about."""

    documents: tuple[NDArray[Any], ...]
    prefix: tuple[int, ...]
    tokenizer: str
    files: tuple[dict[str, Any], ...]
    """Name, bytes, tokens and sha256 of each document's file"""

    @property
    def tokens(self) -> int:
        return sum(map(len, self.documents))


def read_text(folder: Path, paths: Sequence[Path], vocab_size: int) -> TokenText:
    """The files `paths` as tokens of the checkpoint in `folder`, a document each.

    `UsageError` for files that cannot be read or are no text of this tokenizer, and for ids outside the vocabulary;
    `CannotRunError` without the package tokenizers."""
    config = _config(folder)
    if config.get(BYTES_KEY) == "bytes":
        encode, prefix, name = _bytes_tokenizer(folder, config, vocab_size)
    elif BYTES_KEY in config:
        raise UsageError(
            f"{folder / 'config.json'}: {BYTES_KEY} is {config[BYTES_KEY]!r}", hint='only "bytes" is known'
        )
    elif (folder / TOKENIZER_FILE).is_file():
        encode, prefix, name = _file_tokenizer(folder / TOKENIZER_FILE)
    else:
        raise UsageError(
            f"{folder} has no {TOKENIZER_FILE}",
            hint=f'give ids with --tokens, or put "{BYTES_KEY}": "bytes" into config.json if the model reads bytes',
        )
    contents = [_contents(path) for path in paths]
    documents = tuple(encode(path, data) for path, data in zip(paths, contents, strict=True))
    return _checked(documents, prefix, name, paths, contents, vocab_size)


def read_ids(paths: Sequence[Path], vocab_size: int) -> TokenText:
    """Files of token ids, `.npy` or text with white space between them, a document each."""
    contents = [_contents(path) for path in paths]
    documents = tuple(_ids_of(path, data) for path, data in zip(paths, contents, strict=True))
    return _checked(documents, (), "ids", paths, contents, vocab_size)


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of one length, `[windows, tokens]`, the prefix at their beginning. `held_out` are for calibration and
    are not measured; `available` is how many the text has."""

    measured: Ids
    held_out: Ids
    available: int


def windows_of(text: TokenText, window_tokens: int, count: int, held_out: int) -> Windows:
    """At most `count` windows to measure and `held_out` others, spread evenly over the text; none crosses documents.
    `UsageError` when the text is too short for two and one held out."""
    body = window_tokens - len(text.prefix)
    if body < 2:
        raise UsageError(
            f"a window of {window_tokens} tokens has no room for text after the {len(text.prefix)} that the tokenizer "
            "begins with",
            hint="raise --window-tokens",
        )
    whole = [document[: len(document) // body * body].reshape(-1, body) for document in text.documents]
    rows = np.concatenate(whole)
    spare = max(1, min(held_out, len(rows) // 4))
    if len(rows) < 2 + spare:
        raise UsageError(
            f"the text is too short: {text.tokens:,} tokens make {len(rows)} windows of {window_tokens}, and two to "
            "measure and one to calibrate with are the least",
            hint="give more text, or lower --window-tokens",
        )
    taken = _spread(len(rows), min(count + spare, len(rows)))
    aside = _spread(len(taken), spare) + len(taken) // (2 * spare)
    prefix = np.tile(np.array(text.prefix, np.int64), (len(taken), 1))
    windows = np.concatenate([prefix, rows[taken].astype(np.int64)], axis=1)
    return Windows(np.delete(windows, aside, axis=0), windows[aside], len(rows))


def _spread(size: int, count: int) -> Ids:
    """`count` different numbers below `size`, at even distances."""
    return np.arange(count, dtype=np.int64) * size // count


def _config(folder: Path) -> dict[str, Any]:
    """The checkpoint's config, which has been read and checked as the model's before."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    return found


def _bytes_tokenizer(folder: Path, config: dict[str, Any], vocab_size: int) -> tuple[Any, tuple[int, ...], str]:
    if vocab_size < _BYTE_VALUES:
        raise UsageError(
            f"{folder / 'config.json'} says that tokens are bytes, with a vocabulary of {vocab_size}",
            hint=f"bytes need a vocab_size of {_BYTE_VALUES} or more",
        )
    first = config.get("bos_token_id")
    is_given = isinstance(first, int) and not isinstance(first, bool) and _BYTE_VALUES <= first < vocab_size
    return _encode_bytes, (first,) if is_given else (), "bytes"  # type: ignore[return-value]


def _encode_bytes(path: Path, data: bytes) -> NDArray[Any]:
    return np.frombuffer(data, np.uint8)


def _file_tokenizer(path: Path) -> tuple[Any, tuple[int, ...], str]:
    """Encodes without special tokens; the prefix is what the tokenizer itself puts before a text."""
    try:
        import tokenizers
    except ImportError:
        raise CannotRunError(
            "reading tokenizer.json needs the package tokenizers, which is not installed",
            hint="pip install tokenizers, or give token ids with --tokens",
        ) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        sample = tokenizer.encode("a")
    except Exception as error:  # the package raises plain Exception for a damaged file
        raise UsageError(f"{path} is not a tokenizer that can be read: {error}", hint="fetch the file again") from None
    is_special = [*map(bool, sample.special_tokens_mask), False]
    prefix = tuple(sample.ids[: is_special.index(False)])

    def encode(source: Path, data: bytes) -> Ids:
        ids = tokenizer.encode(_decoded(source, data), add_special_tokens=False).ids
        return np.array(ids, dtype=np.int64)

    return encode, prefix, f"{TOKENIZER_FILE} (tokenizers {tokenizers.__version__})"


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}",
            hint="convert it (iconv -t UTF-8), or give token ids with --tokens",
        ) from None


def _contents(path: Path) -> bytes:
    """The whole file, or pipe, if it ends in time."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}", hint="give the path of a text, or of ids with --tokens") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name a file that you may read") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise UsageError(f"{path} is larger than {format_bytes(LARGEST_FILE_BYTES)}", hint="a part of it will do")
    return data


def _ids_of(path: Path, data: bytes) -> Ids:
    try:
        if path.suffix == ".npy":
            found: Ids = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
            if found.ndim != 1 or found.dtype.kind not in "iu":
                raise ValueError(f"an array of {found.dtype} with shape {list(found.shape)}")
            return found.astype(np.int64)
        return np.array([int(word) for word in data.split()], dtype=np.int64)
    except (ValueError, OverflowError, EOFError) as error:
        raise UsageError(
            f"{path} holds no list of token ids: {error}",
            hint="whole numbers with white space between them, or a one-dimensional .npy of integers",
        ) from None


def _checked(
    documents: tuple[NDArray[Any], ...],
    prefix: tuple[int, ...],
    name: str,
    paths: Sequence[Path],
    contents: Sequence[bytes],
    vocab_size: int,
) -> TokenText:
    for path, ids in zip(paths, documents, strict=True):
        is_outside = (ids < 0) | (ids >= vocab_size)
        if is_outside.any():
            worst = ids[is_outside][0]
            raise UsageError(
                f"{path}: {int(is_outside.sum()):,} of {len(ids):,} token ids are outside the model's vocabulary of "
                f"{vocab_size:,}, such as {worst}",
                hint="the tokens are another model's",
            )
    if any(not 0 <= token < vocab_size for token in prefix):
        raise UsageError(
            f"the tokenizer begins texts with {list(prefix)}, outside the vocabulary of {vocab_size:,}",
            hint="the tokenizer is another model's",
        )
    files = tuple(
        {"name": path.name, "bytes": len(data), "tokens": len(ids), "sha256": hashlib.sha256(data).hexdigest()}
        for path, data, ids in zip(paths, contents, documents, strict=True)
    )
    return TokenText(documents, prefix, name, files)
