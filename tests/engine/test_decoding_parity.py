"""Samples and beams with real tensors: against `transformers`' beam search, and against separate requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from kvbench.engine.beams import BeamParams, EarlyStopping
from kvbench.engine.engine import Engine
from kvbench.engine.job import Job
from kvbench.engine.model import Model
from kvbench.engine.sampling import SamplingParams
from kvbench.geometry.memory import block_bytes
from kvbench.spec.engine import EngineSettings
from tests.checkpoints import MARGIN, prompts_of, reference_logits, reference_model, write_checkpoint
from tests.engine.branches import naive_beam_search

WIDTH, OUTPUT = 4, 10
LENGTHS = [1, 23, 9, 40]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("llama", tmp_path_factory.mktemp("llama"), seed=4)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model.from_pretrained(folder)


def small_engine(model: Model, block: int, tokens: int = 320, **more: object) -> Engine:
    size = block_bytes(model.geometry, "fp32", block)
    settings = {"block_size": block, "kv_memory": size * tokens // block, "max_batch_tokens": 48, "max_sequences": 16}
    return Engine(model, EngineSettings.model_validate({**settings, **more}), check=True)


def reference_beams(folder: Path, prompt: list[int], stop: list[int], params: BeamParams) -> list[int]:
    found = reference_model(folder).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=OUTPUT,
        num_beams=params.width,
        do_sample=False,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=stop or None,
        pad_token_id=0,
    )
    tokens: list[int] = found[0, len(prompt) :].tolist()
    ends = [at for at, token in enumerate(tokens) if token in stop]
    return tokens[: ends[0] + 1] if ends else tokens


def recomputed_beams(folder: Path, prompt: list[int], stop: list[int], params: BeamParams) -> tuple[list[int], float]:
    def continuations(tokens: list[int]) -> tuple[list[int], list[float]]:
        best = reference_logits(folder, tokens)[-1].log_softmax(-1).topk(max(2, 1 + len(stop)) * params.width)
        return best.indices.tolist(), best.values.double().tolist()

    outputs, lead = naive_beam_search(
        continuations,
        prompt,
        params.width,
        OUTPUT,
        stop=frozenset(stop),
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
    )
    return outputs[0], lead


@pytest.mark.parametrize(
    ("penalty", "early", "num_stops", "ends_early"),
    [
        (1.0, False, 0, False),
        (0.0, True, 30, True),
        (1.0, False, 30, False),
        (2.0, "never", 30, False),
        (-1.0, "never", 12, True),
    ],
)
def test_beams_equal_those_of_transformers(
    folder: Path, model: Model, penalty: float, early: EarlyStopping, num_stops: int, ends_early: bool
) -> None:
    """And those of a search that recomputes everything, with every choice on the way made by a clear lead."""
    params, stop = BeamParams(WIDTH, penalty, early), list(range(0, 7 * num_stops, 7))
    prompts = prompts_of(LENGTHS, seed=8)
    expected = [reference_beams(folder, prompt, stop, params) for prompt in prompts]
    twins = [recomputed_beams(folder, prompt, stop, params) for prompt in prompts]
    assert [output for output, _ in twins] == expected
    assert min(lead for _, lead in twins) > MARGIN / 10
    for block, more in (
        (4, {"prefix_cache": "hash"}),
        (16, {"batch_policy": "continuous"}),
        (3, {"attention": "torch"}),
    ):
        assert small_engine(model, block, **more).generate(prompts, OUTPUT, None, stop, beams=params) == expected
    lengths = {len(output) for output in expected}
    assert (min(lengths) < OUTPUT) == ends_early


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_samples_equal_separate_requests_with_the_same_keys(model: Model, policy: str) -> None:
    """Four samples of each prompt in a pool so small that samples are preempted."""
    sampling, prompts = SamplingParams(0.9, top_k=40), prompts_of(LENGTHS, seed=9)
    engine = small_engine(model, 8, tokens=160, batch_policy=policy, prefix_cache="hash")
    jobs = [Job(at, np.array(prompt, np.int32), OUTPUT, sampling=sampling, n=4) for at, prompt in enumerate(prompts)]
    preemptions = 0
    for job in jobs:
        engine.add(job)
    while engine.has_work:
        step = engine.step()
        assert step is not None
        preemptions += step.preemptions
    assert preemptions > 0
    found = engine.take_all_outputs()
    alone = small_engine(model, 16)
    for job in jobs:
        for sample in range(4):
            alone.add(Job(job.request_id, job.prompt, OUTPUT, sampling=sampling, sample=sample))
            while alone.has_work:
                alone.step()
            assert alone.take_outputs()[job.request_id] == found[job.request_id][sample]
    assert small_engine(model, 16).generate_samples(prompts, OUTPUT, 4, sampling) == [found[at] for at in range(4)]
