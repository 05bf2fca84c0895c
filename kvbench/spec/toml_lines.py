"""On which line each key of a TOML text stands; the parser of the standard library does not say.

Works on text that `tomllib` has accepted, so it only needs to find its way, not to judge.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = (
    ('"""', re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL)),
    ("'''", re.compile(r"'''.*?'{3,5}", re.DOTALL)),
    ('"', re.compile(r'"(?:[^"\\]|\\.)*"')),
    ("'", re.compile(r"'[^']*'")),
)

Path = tuple[str | int, ...]


def key_lines(text: str) -> dict[str, int]:
    """`"axes.engine.block_size.0"` → line, counted from 1, for every key, table and list element.

    Parts are joined by dots whichever way the file spells them (`[a.b]`, `a.b = …`, `"a.b" = …`); where two spellings
    meet, the first line wins.
    """
    return _Walk(text).document()


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[str, int] = {}
        self._line_ends = [i for i, c in enumerate(text) if c == "\n"]
        self._tables_in: dict[Path, int] = {}

    def document(self) -> dict[str, int]:
        table: Path = ()
        self._skip(_SPACE)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._key_and_value(table)
            self._skip(_SPACE)
        return self.lines

    def _header(self) -> Path:
        """`[a.b]` or `[[a.b]]` → the table that the following keys belong to."""
        brackets = 2 if self.text.startswith("[[", self.at) else 1
        start = self.at
        self.at += brackets
        parts = self._key()
        self._skip(_SPACE)
        self.at += brackets
        path = self._open(parts, start)
        if brackets == 1:
            return self._last_of_list(path)
        index = self._tables_in.get(path, 0)
        self._tables_in[path] = index + 1
        self._note((*path, index), start)
        return (*path, index)

    def _open(self, parts: Path, start: int) -> Path:
        """The full path of a header: a list of tables on the way means its last table."""
        path: Path = ()
        for part in parts:
            path = (*self._last_of_list(path), part)
            self._note(path, start)
        return path

    def _last_of_list(self, path: Path) -> Path:
        count = self._tables_in.get(path, 0)
        return (*path, count - 1) if count else path

    def _key_and_value(self, table: Path) -> None:
        start = self.at
        parts = self._key()
        for end in range(1, len(parts) + 1):
            self._note((*table, *parts[:end]), start)
        self.at = self.text.index("=", self.at) + 1
        self._value((*table, *parts))

    def _key(self) -> Path:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            parts.append(self._key_part())
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _key_part(self) -> str:
        start = self.at
        if self.text[start] in "\"'":
            self._string()
            return str(tomllib.loads(f"k = {self.text[start : self.at]}")["k"])
        self._skip(_BARE_KEY)
        return self.text[start : self.at]

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        opening = self.text[self.at]
        if opening == "[":
            self._list(path)
        elif opening == "{":
            self._inline_table(path)
        elif opening in "\"'":
            self._string()
        else:
            self._skip(_BARE_VALUE)

    def _list(self, path: Path) -> None:
        index = 0
        while not self._ends("]"):
            self._note((*path, index), self.at)
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Path) -> None:
        while not self._ends("}"):
            self._key_and_value(path)

    def _ends(self, closing: str) -> bool:
        """Step over the opening bracket or a comma; True, and past it, at the closing bracket."""
        self._skip(_SPACE)
        if self.text[self.at] in "[{," and self.text[self.at] != closing:
            self.at += 1
            self._skip(_SPACE)
        done = self.text[self.at] == closing
        self.at += done
        return done

    def _string(self) -> None:
        pattern = next(pattern for opening, pattern in _STRINGS if self.text.startswith(opening, self.at))
        self._skip(pattern)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at + 1

    def _note(self, path: Path, at: int) -> None:
        self.lines.setdefault(".".join(map(str, path)), bisect_right(self._line_ends, at - 1) + 1)
