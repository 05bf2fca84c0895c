"""Output tokens per second of the engine against Hugging Face `transformers`: same weights, same threads, one process.

    python benchmarks/engine_vs_huggingface.py [--json] [--rounds 3] [--threads 2] [--requests 48]

48 requests with lognormal lengths (input median 150, output median 37) arrive at once at a llama of 8 layers × 512.
`transformers` serves them by `generate` in padded batches of 8 and of 16, in order of arrival, each batch running to
its longest member (only tokens that a request asked for are counted), and by its continuous batching. The contenders
take turns; the ratio is the engine's figure over the best of `transformers` in the same round. The bar is 2.5.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvbench.engine.engine import Engine
from kvbench.engine.job import Job
from kvbench.engine.model import Model
from kvbench.geometry.presets import preset
from kvbench.spec.engine import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Callable

BAR = 2.5
SIGMA = 0.7
LONGEST_INPUT, LONGEST_OUTPUT = 1024, 256
Outputs = list[list[int]]


@dataclass(frozen=True)
class Work:
    """Prompts, and how many tokens each one asks for."""

    prompts: list[list[int]]
    output_tokens: list[int]

    def first(self, count: int) -> Work:
        return Work(self.prompts[:count], [min(n, 4) for n in self.output_tokens[:count]])


def draw_work(requests: int, vocab_size: int, seed: int = 0) -> Work:
    random = np.random.default_rng(seed)
    inputs = np.clip(random.lognormal(np.log(150), SIGMA, requests).round(), 1, LONGEST_INPUT).astype(int)
    outputs = np.clip(random.lognormal(np.log(37), SIGMA, requests).round(), 1, LONGEST_OUTPUT).astype(int)
    return Work([random.integers(0, vocab_size, n).tolist() for n in inputs], outputs.tolist())


def write_checkpoint(folder: Path) -> None:
    """Random weights in the geometry of `small-llama`, made and written by transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    g = preset("small-llama")
    config = LlamaConfig(
        vocab_size=g.vocab_size,
        hidden_size=g.hidden_size,
        intermediate_size=g.intermediate_size,
        num_hidden_layers=g.num_layers,
        num_attention_heads=g.query_heads,
        num_key_value_heads=g.kv_heads,
        head_dim=g.head_dim,
        max_position_embeddings=g.max_context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


def reference_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


def engine_contender(folder: Path) -> Callable[[Work], Outputs]:
    settings = EngineSettings.model_validate({"block_size": 16, "kv_dtype": "fp32", "kv_memory": "1GiB"})
    engine = Engine(Model.from_pretrained(folder), settings, max_context=LONGEST_INPUT + LONGEST_OUTPUT)

    def serve(work: Work) -> Outputs:
        engine.reset()
        for index, (prompt, count) in enumerate(zip(work.prompts, work.output_tokens, strict=True)):
            engine.add(Job(index, np.array(prompt, np.int32), count))
        while engine.has_work:
            engine.step()
        outputs = engine.take_outputs()
        return [outputs[index] for index in range(len(work.prompts))]

    return serve


def static_contender(model: Any, batch: int) -> Callable[[Work], Outputs]:
    def serve(work: Work) -> Outputs:
        outputs: Outputs = []
        for start in range(0, len(work.prompts), batch):
            counts = work.output_tokens[start : start + batch]
            found = _generate(model, work.prompts[start : start + batch], max(counts))
            outputs += [row[:count] for row, count in zip(found, counts, strict=True)]
        return outputs

    return serve


def _generate(model: Any, prompts: list[list[int]], count: int) -> Outputs:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    found = model.generate(ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False)
    rows: Outputs = found[:, longest:].tolist()
    return rows


def continuous_contender(model: Any) -> Callable[[Work], Outputs]:
    """transformers' continuous batching, with room for all requests at once."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=LONGEST_OUTPUT)
    batching = ContinuousBatchingConfig(page_size=32, num_blocks=2048, max_batch_tokens=2048)

    def serve(work: Work) -> Outputs:
        with (
            torch.inference_mode(),
            model.continuous_batching_context_manager(
                generation_config=generation, continuous_batching_config=batching, warmup=False
            ) as manager,
        ):
            for index, (prompt, count) in enumerate(zip(work.prompts, work.output_tokens, strict=True)):
                manager.add_request(prompt, request_id=str(index), max_new_tokens=count)
            outputs: dict[str, list[int]] = {}
            while len(outputs) < len(work.prompts):
                result = manager.get_result(timeout=1)
                if result is not None and result.error:
                    raise RuntimeError(result.error)
                if result is None and not manager.is_running():
                    raise RuntimeError("transformers' generation thread ended")
                if result is not None and result.is_finished():
                    outputs[result.request_id] = list(result.generated_tokens)
        return [outputs[str(index)] for index in range(len(work.prompts))]

    return serve


@dataclass
class Contender:
    """Who serves, its speed in each round, and what it answered last."""

    name: str
    serve: Callable[[Work], Outputs]
    tokens_per_s: list[float]
    outputs: Outputs

    def run(self, work: Work) -> None:
        start = time.perf_counter()
        self.outputs = self.serve(work)
        self.tokens_per_s.append(sum(work.output_tokens) / (time.perf_counter() - start))


def contenders(folder: Path) -> tuple[list[Contender], str | None]:
    """Engine first; and why continuous batching is not among the rest, where it does not run."""
    model = reference_model(folder)
    serves: dict[str, Callable[[Work], Outputs]] = {
        "kvbench engine": engine_contender(folder),
        "transformers generate, batch 8": static_contender(model, 8),
        "transformers generate, batch 16": static_contender(model, 16),
    }
    continuous, problem = continuous_contender(reference_model(folder)), None
    try:
        continuous(draw_work(2, model.config.vocab_size).first(2))
        serves["transformers continuous batching"] = continuous
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    return [Contender(name, serve, [], []) for name, serve in serves.items()], problem


def compare(folder: Path, work: Work, rounds: int) -> dict[str, Any]:
    everyone, problem = contenders(folder)
    for contender in everyone:
        contender.serve(work.first(16))
    for turn in range(rounds):
        for contender in everyone[:: 1 if turn % 2 == 0 else -1]:
            contender.run(work)
            print(f"round {turn + 1}: {contender.name} {contender.tokens_per_s[-1]:.1f} tokens/s", file=sys.stderr)
    engine, *others = everyone
    ratios = [engine.tokens_per_s[r] / max(o.tokens_per_s[r] for o in others) for r in range(rounds)]
    return {
        "requests": len(work.prompts),
        "input_tokens": sum(map(len, work.prompts)),
        "output_tokens": sum(work.output_tokens),
        "threads": torch.get_num_threads(),
        "output_tokens_per_s": {c.name: c.tokens_per_s for c in everyone},
        "same_outputs": {c.name: sum(a == b for a, b in zip(c.outputs, engine.outputs, strict=True)) for c in others},
        "continuous_batching_problem": problem,
        "ratios": ratios,
        "median_ratio": median(ratios),
        "bar": BAR,
    }


def print_table(result: dict[str, Any]) -> None:
    print(f"{result['requests']} requests, {result['input_tokens']} input and {result['output_tokens']} output tokens, "
          f"{result['threads']} threads")  # fmt: skip
    print(f"{'':34}{'output tokens/s':>16}  {'rounds':<24}answers equal to the engine's")
    for name, speeds in result["output_tokens_per_s"].items():
        rounds = " ".join(f"{speed:.1f}" for speed in speeds)
        same = result["same_outputs"].get(name)
        print(f"{name:34}{median(speeds):16.1f}  {rounds:<24}{'' if same is None else same}")
    if result["continuous_batching_problem"]:
        print(f"transformers continuous batching does not run here: {result['continuous_batching_problem']}")
    ratios = " ".join(f"{ratio:.2f}" for ratio in result["ratios"])
    print(f"engine over the best of transformers: {result['median_ratio']:.2f} (rounds {ratios}; bar {BAR})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, default=48)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        from kvbench_kernels import runtime

        runtime.set_threads(chosen.threads)
        work = draw_work(chosen.requests, preset("small-llama").vocab_size)
        result = compare(Path(folder), work, chosen.rounds)
    print(json.dumps(result)) if chosen.json else print_table(result)


if __name__ == "__main__":
    main()
