"""Tiny random checkpoints written by Hugging Face `transformers`, and its own greedy answers, for parity tests.

`initializer_range` is large, so that the best token leads the second by far more than float32 rounding.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

FAMILIES = ("llama", "llama-mha-bias", "qwen2", "qwen3", "qwen3-tied")
MARGIN = 1e-4
VOCAB = 211
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "rope_theta": 10_000.0,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _transformers() -> Any:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _config(family: str) -> Any:
    transformers = _transformers()
    if family == "llama":
        return transformers.LlamaConfig(**_SHAPE, rope_scaling=_LLAMA3_ROPE, tie_word_embeddings=False)
    if family == "llama-mha-bias":
        shape = {**_SHAPE, "num_key_value_heads": 8}
        return transformers.LlamaConfig(**shape, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    if family == "llama-linear":
        return transformers.LlamaConfig(**_SHAPE, rope_scaling={"rope_type": "linear", "factor": 4.0})
    if family == "qwen2":
        return transformers.Qwen2Config(**_SHAPE, tie_word_embeddings=False)
    if family in ("qwen3", "qwen3-tied"):
        return transformers.Qwen3Config(**_SHAPE, tie_word_embeddings=family == "qwen3-tied")
    raise ValueError(f"no checkpoint family {family!r}")


def write_checkpoint(family: str, folder: Path, seed: int = 0, *, shard_size: str = "1GB") -> Path:
    """A random float32 checkpoint of one of `FAMILIES` in `folder`; biases and norms are random too."""
    transformers = _transformers()
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(_config(family), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.normal_(0.0, 0.2)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


@cache
def reference_model(folder: Path) -> Any:
    """The checkpoint as `transformers` loads it, in float32 with eager attention."""
    model = _transformers().AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


def reference_logits(folder: Path, tokens: list[int]) -> torch.Tensor:
    """Logits `[len(tokens), vocab]` of one forward pass by `transformers`."""
    with torch.no_grad():
        logits: torch.Tensor = reference_model(folder)(torch.tensor([tokens])).logits[0]
    return logits


def reference_greedy(folder: Path, prompts: list[list[int]], max_tokens: int) -> tuple[list[list[int]], float]:
    """What `transformers`' own `generate` answers, prompt by prompt, and the smallest lead of a best token over the
    second one on the way."""
    outputs, margins = [], []
    for prompt in prompts:
        found = reference_model(folder).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        outputs.append(found.sequences[0, len(prompt) :].tolist())
        margins += [margin(logits[0]) for logits in found.logits]
    return outputs, min(margins)


def margin(logits: torch.Tensor) -> float:
    """Lead of the largest over the second largest, the smallest over all rows."""
    best = logits.topk(2, dim=-1).values
    return float((best[..., 0] - best[..., 1]).min())


def prompts_of(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of the given lengths over the checkpoints' vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]
