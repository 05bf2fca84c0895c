"""A small byte-level llama, trained on the project's own pages: a checkpoint for `kvbench quality` that has learned.

    python benchmarks/train_byte_model.py FOLDER [--json] [--steps 400] [--context 256] [--hidden 128] [--layers 4]

Tokens are bytes, as config.json says. One page is held out; its bits per byte, uniform being 8, are printed and are
what `kvbench quality --text` should be given. About a minute on two cores, with `transformers`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = "measurement.md"
HEAD_DIM, KV_HEADS = 32, 2
LEARNING_RATE, WARMUP_STEPS = 3e-3, 20


@dataclass(frozen=True)
class Recipe:
    """What is trained, and for how long."""

    steps: int = 400
    context: int = 256
    hidden: int = 128
    layers: int = 4
    batch: int = 8
    seed: int = 0


def train(folder: Path, recipe: Recipe) -> dict[str, float]:
    """Train and save a checkpoint; what it came to on the page it has not seen."""
    start = time.perf_counter()
    torch.manual_seed(recipe.seed)
    model = _model(recipe)
    draw = np.random.default_rng(recipe.seed)
    text = _bytes_of(sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != HELD_OUT))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe.steps))
    for _ in range(recipe.steps):
        starts = draw.integers(0, len(text) - recipe.context, recipe.batch)
        rows = torch.from_numpy(np.stack([text[at : at + recipe.context] for at in starts]))
        model(rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return {
        "bits_per_byte": _bits_per_byte(model, _bytes_of([ROOT / "docs" / HELD_OUT]), recipe.context),
        "uniform_bits_per_byte": 8.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": time.perf_counter() - start,
    }


def _model(recipe: Recipe) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.hidden * 11 // 4,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.hidden // HEAD_DIM,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        kvbench_tokenizer="bytes",
    )
    return LlamaForCausalLM(config)


def _bytes_of(pages: list[Path]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.frombuffer(b"\n".join(page.read_bytes() for page in pages), np.uint8).astype(np.int64)


def _rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine."""
    return min((step + 1) / WARMUP_STEPS, 0.5 * (1 + math.cos(math.pi * step / steps)))


@torch.no_grad()
def _bits_per_byte(model: Any, text: np.ndarray[Any, np.dtype[np.int64]], context: int) -> float:
    """Over windows of the context, of which the first byte is given."""
    windows = torch.from_numpy(text[: len(text) // context * context].reshape(-1, context))
    losses = [model(rows, labels=rows).loss.item() * len(rows) for rows in windows.split(16)]
    return sum(losses) / len(windows) / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    for name in ("steps", "context", "hidden", "layers", "batch", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Recipe, name))
    given = vars(parser.parse_args())
    folder, as_json = given.pop("folder"), given.pop("json")
    found = train(folder, Recipe(**given))
    if as_json:
        print(json.dumps({"folder": str(folder), "held_out": HELD_OUT, **given, **found}, indent=2))
        return
    for name, value in found.items():
        print(f"{name:24} {value:,.3f}")


if __name__ == "__main__":
    main()
