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
WINDOWED = ("mistral", "qwen3-window", "gemma2", "gemma3", "gpt-oss")
LATENT = ("deepseek-v2", "deepseek-v2-experts", "deepseek-v3", "deepseek-v3-experts")
MARGIN = 1e-4
VOCAB = 211
WINDOW = 24
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


_YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 2,
    "topk_group": 1,
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
    return _windowed(family) if family in WINDOWED else _latent(family)


def _windowed(family: str) -> Any:
    transformers = _transformers()
    if family == "mistral":
        return transformers.MistralConfig(**_SHAPE, sliding_window=WINDOW)
    if family == "qwen3-window":
        return transformers.Qwen3Config(**_SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    if family == "gpt-oss":
        experts = {"num_local_experts": 6, "num_experts_per_tok": 2}
        rope = {**_YARN, "truncate": False, "rope_theta": 10_000.0}
        shape = {name: value for name, value in _SHAPE.items() if name != "rope_theta"}
        return transformers.GptOssConfig(**shape, **experts, sliding_window=WINDOW, rope_parameters=rope)
    if family == "gemma2":
        caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}
        return transformers.Gemma2Config(**_SHAPE, **caps, query_pre_attn_scalar=24, sliding_window=WINDOW)
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0},
    }
    shape = {name: value for name, value in _SHAPE.items() if name != "rope_theta"}
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    more = {"query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0, "layer_types": types}
    return transformers.Gemma3TextConfig(**shape, **more, sliding_window=WINDOW, rope_parameters=rope)


def _latent(family: str) -> Any:
    transformers = _transformers()
    shape = {name: value for name, value in {**_SHAPE, **_LATENT}.items() if name not in ("head_dim", "rope_theta")}
    rope = {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "rope_theta": 10_000.0}
    if family == "deepseek-v2":
        return transformers.DeepseekV2Config(**shape, q_lora_rank=None, first_k_dense_replace=3, rope_parameters=rope)
    if family == "deepseek-v2-experts":
        grouped = {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5, "first_k_dense_replace": 1}
        return transformers.DeepseekV2Config(**shape, **grouped, q_lora_rank=24, attention_bias=True)
    if family == "deepseek-v3":
        return transformers.DeepseekV3Config(
            **shape, q_lora_rank=24, first_k_dense_replace=3, rope_interleave=False, rope_parameters=rope
        )
    if family == "deepseek-v3-experts":
        return transformers.DeepseekV3Config(**shape, q_lora_rank=None, first_k_dense_replace=1, rope_parameters=rope)
    raise ValueError(f"no checkpoint family {family!r}")


def write_checkpoint(family: str, folder: Path, seed: int = 0, *, shard_size: str = "1GB") -> Path:
    """A random float32 checkpoint of a family named above in `folder`; biases and norms are random too."""
    transformers = _transformers()
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(_config(family), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")):
                parameter.normal_(0.0, 0.2)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.2)
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
