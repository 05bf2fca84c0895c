"""A recommendation as another server's own flags, with what that server or its backends would object to."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvbench.analysis.advice.backend_check import Asked, backend_warnings
from kvbench.analysis.advice.servers import server
from kvbench.errors import UsageError
from kvbench.geometry.dtypes import scales_per_token, storage_dtype

if TYPE_CHECKING:
    from kvbench.analysis.advice.servers import Document, Server, Setting

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The settings to translate; None is not said, and then no flag is printed. Bytes are one device's.

    `prefix_cache` is on or off. `host_bytes` is the host tier, 0 for none. `is_latent` and `capability`
    (compute capability, as in 9.0) choose among attention backends.
    """

    block_size: int
    kv_dtype: str
    kv_scales: str = "token-head"
    max_sequences: int | None = None
    max_batch_tokens: int | None = None
    batch_policy: Literal["static", "continuous", "chunked"] | None = None
    prefix_cache: bool | None = None
    host_bytes: int | None = None
    kv_bytes: int | None = None
    tp: int = 1
    max_context: int | None = None
    is_latent: bool = False
    capability: float | None = None


@dataclass(slots=True)
class Emitted:
    """What to type. `command` is one line for a shell, `config` the text of the YAML file that it names, if any.

    `warnings` say what the server would object to or read otherwise; `unknown` which settings have no flag that is
    known. `facts` are (setting, what is printed for it, documents)."""

    server: str
    title: str
    command: str = ""
    config_file: str | None = None
    config: str | None = None
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    facts: list[tuple[str, str, tuple[Document, ...]]] = field(default_factory=list)


def emit_flags(name: str, answer: Answer, model: str = "MODEL") -> Emitted:
    """The flags of `vllm`, `sglang` or `trtllm`; `UsageError` for another name or a KV dtype that does not exist."""
    storage_dtype(answer.kv_dtype)
    scales_per_token(answer.kv_scales)
    if answer.block_size < 1:
        raise UsageError(f"block size {answer.block_size} is not positive")
    return _Translation(server(name), answer).emitted(model)


class _Translation:
    def __init__(self, to: Server, answer: Answer) -> None:
        self.to, self.answer = to, answer
        self.words: list[str] = []
        self.config: dict[str, Value] = {}
        self.found = Emitted(to.name, to.title)

    def emitted(self, model: str) -> Emitted:
        answer = self.answer
        self._value("block_size", answer.block_size)
        stored = self._kv_dtype()
        for name in ("max_sequences", "kv_bytes", "max_context"):
            self._value(name, getattr(answer, name))
        self._value("tp", answer.tp if answer.tp > 1 else None)
        self._batch()
        self._switch("prefix_cache", answer.prefix_cache)
        self._host()
        self._rules()
        kind = "latent" if answer.is_latent else "standard"
        self.found.warnings += backend_warnings(self.to, Asked(answer.block_size, stored, kind, answer.capability))
        self._finish(model)
        return self.found

    def _value(self, name: str, value: Value | None, *, flag: str | None = None) -> None:
        if value is None:
            return
        setting = self.to.settings.get(name)
        if setting is None:
            why = self.to.without.get(name, "no such flag known")
            self.found.unknown.append(f"{_NAMES[name]} = {value}: {why}")
            return
        flag = flag or setting.flag
        if flag is not None:
            self.words += [flag, str(value)]
            self._note(name, setting, f"{flag} {value}", value)
        elif setting.key is not None:
            self.config[setting.key] = value
            self._note(name, setting, f"{setting.key}: {_yaml(value)}", value)

    def _note(self, name: str, setting: Setting, text: str, value: Value | None = None) -> None:
        documents = tuple(self.to.sources[source] for source in setting.sources)
        note = setting.notes.get(str(value), setting.note)
        self.found.facts.append((_NAMES[name], text + (f" ({note})" if note else ""), documents))

    def _kv_dtype(self) -> str | None:
        """The server's own name of the KV dtype."""
        setting, dtype = self.to.settings["kv_dtype"], storage_dtype(self.answer.kv_dtype)
        is_scaled = dtype.scale_bytes > 0
        scales = "token-head" if scales_per_token(self.answer.kv_scales) else "tensor"
        value = setting.values.get(f"{dtype.name} {scales}" if is_scaled else dtype.name)
        if value is None and is_scaled and (value := setting.values.get(f"{dtype.name} tensor")) is not None:
            self.found.warnings.append(
                f"{self.to.title} keeps {dtype.name} with scales per tensor, from the checkpoint or 1.0; here it has "
                "a scale per token and head: capacity, speed and error are not the same"
            )
        if value is None:
            what = f"{dtype.name} with scales per {'token and head' if scales == 'token-head' else 'tensor'}"
            self.found.unknown.append(f"KV dtype = {what if is_scaled else dtype.name}: no such value known")
            return None
        self._value("kv_dtype", value)
        least, capability = setting.least_capability.get(value), self.answer.capability
        if least is not None and capability is not None and capability < least:
            self.found.warnings.append(f"KV as {value} needs a GPU of compute capability {least} or above")
        return value

    def _batch(self) -> None:
        policy, tokens = self.answer.batch_policy, self.answer.max_batch_tokens
        if policy == "static":
            self.found.unknown.append("batch policy = static: no such flag known, batches are continuous")
        setting = self.to.settings.get("max_batch_tokens")
        other = None if setting is None or policy in (None, "chunked") else setting.unless_chunked
        self._value("max_batch_tokens", tokens, flag=other)
        self._switch("chunked_prefill", None if policy is None else policy == "chunked")

    def _switch(self, name: str, is_on: bool | None) -> None:
        setting = self.to.settings.get(name)
        if is_on is None or setting is None or setting.key is not None:
            self._value(name, is_on)
            return
        words = setting.on if is_on else setting.off
        self.words += words or ()
        state = "on" if is_on else "off"
        self._note(name, setting, " ".join(words or ()) or f"{state} without a flag", state)

    def _host(self) -> None:
        wanted, setting = self.answer.host_bytes, self.to.settings.get("host_bytes")
        if not wanted or setting is None:
            self._value("host_bytes", wanted or None)
            return
        ranks = self.answer.tp if setting.counts == "all ranks" else 1
        size = wanted * ranks / setting.unit_bytes
        if setting.is_whole and size < 1:
            self.found.warnings.append(
                f"{setting.flag} takes whole units, and the host tier is less than one: left out"
            )
            return
        self.words += setting.needs
        self._value("host_bytes", int(size) if setting.is_whole or size == int(size) else round(size, 3))
        if setting.counts == "not said" and self.answer.tp > 1:
            self.found.warnings.append(
                f"{setting.flag or setting.key}: its document does not say if it counts one rank or all; "
                "this is one rank's"
            )

    def _rules(self) -> None:
        answer, checks = self.answer, self.to.rules
        tokens, sequences, context = answer.max_batch_tokens, answer.max_sequences, answer.max_context
        if "batch_tokens_hold_every_sequence" in checks and tokens and sequences and tokens < sequences:
            self.found.warnings.append(
                f"{self.to.title} refuses fewer batch tokens ({tokens:,}) than sequences ({sequences:,})"
            )
        is_whole = answer.batch_policy in ("static", "continuous")
        needs_context = "unchunked_batch_tokens_hold_the_context" in checks and is_whole
        if needs_context and tokens and context and tokens < context:
            self.found.warnings.append(
                f"{self.to.title} refuses batch tokens ({tokens:,}) below the longest context ({context:,}) where "
                "prompts are not chunked"
            )
        least = self.to.settings["block_size"].power_of_two_above
        block = answer.block_size
        if least is not None and (block <= least or block & (block - 1)):
            self.found.warnings.append(f"{self.to.title} takes powers of two above {least} as block size, not {block}")

    def _finish(self, model: str) -> None:
        if self.config:
            self.found.config, self.found.config_file = _yaml_text(self.config), self.to.config_file
            self.words = [self.to.config_flag or "", self.to.config_file or "", *self.words]
        first = self.to.command.replace("MODEL", model if model == "MODEL" else shlex.quote(model))
        self.found.command = " ".join([first, *map(shlex.quote, self.words)])


_NAMES = {
    "block_size": "block size",
    "kv_dtype": "KV dtype",
    "max_sequences": "max sequences",
    "max_batch_tokens": "batch tokens",
    "chunked_prefill": "chunked prefill",
    "prefix_cache": "prefix cache",
    "host_bytes": "host tier",
    "kv_bytes": "KV memory",
    "tp": "tensor parallel",
    "max_context": "longest context",
}


def _yaml(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml_text(config: dict[str, Value]) -> str:
    """Keys `group.name` as YAML, one group a line."""
    groups: dict[str, list[str]] = {}
    for key, value in config.items():
        group, _, name = key.partition(".")
        groups.setdefault(group, []).append(f"{name}: {_yaml(value)}")
    return "\n".join(f"{group}: {{{', '.join(pairs)}}}" for group, pairs in groups.items())
