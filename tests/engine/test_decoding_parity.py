"""Samples, beams and speculation with real tensors, against `transformers` and against separate requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from scipy.stats import chi2

from kvbench.engine.beams import BeamParams, EarlyStopping
from kvbench.engine.engine import Engine
from kvbench.engine.job import Job
from kvbench.engine.model import Model
from kvbench.engine.sampling import SamplingParams
from kvbench.errors import UsageError
from kvbench.geometry.memory import block_bytes
from kvbench.spec.engine import EngineSettings
from tests.checkpoints import (
    MARGIN,
    prompts_of,
    reference_greedy,
    reference_logits,
    reference_model,
    write_checkpoint,
)
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


SPECULATIONS: list[dict[str, object]] = [
    {"speculation": "prompt-lookup", "draft_tokens": 3},
    {"speculation": "first-layers", "draft_layers": 2, "draft_tokens": 4},
    {"speculation": "draft-model", "draft_tokens": 5},
]


@pytest.fixture(scope="module")
def answers(folder: Path) -> list[list[int]]:
    outputs, margin = reference_greedy(folder, prompts_of(LENGTHS, seed=9), 24)
    assert margin > MARGIN
    return outputs


def drafted(folder: Path, one: dict[str, object]) -> dict[str, object]:
    """The draft model is the checkpoint itself, so that it is always right as long as its KV is."""
    return {**one, "draft_model": str(folder)} if one["speculation"] == "draft-model" else one


@pytest.mark.parametrize("one", SPECULATIONS, ids=lambda one: str(one["speculation"]))
@pytest.mark.parametrize(("block", "policy"), [(1, "chunked"), (4, "continuous"), (16, "static"), (16, "chunked")])
def test_greedy_speculation_gives_the_tokens_of_transformers(
    folder: Path, model: Model, answers: list[list[int]], one: dict[str, object], block: int, policy: str
) -> None:
    """In a pool so small that sequences are preempted, with prefix hits in the second round."""
    tokens = 256 if one["speculation"] == "draft-model" else 128  # half of the block bytes are the draft's
    more = {"batch_policy": policy, "prefix_cache": "hash", **drafted(folder, one)}
    engine = small_engine(model, block, tokens, **more)
    prompts, steps = prompts_of(LENGTHS, seed=9), []
    for _ in range(2):
        for at, prompt in enumerate(prompts):
            engine.add(Job(at, np.array(prompt, np.int32), 24))
        while engine.has_work:
            step = engine.step()
            assert step is not None
            steps.append(step)
        outputs = engine.take_outputs()
        assert [outputs[at] for at in range(len(prompts))] == answers
    drafts, accepted = sum(step.draft_tokens for step in steps), sum(step.accepted_tokens for step in steps)
    assert sum(step.preemptions for step in steps) > 0
    assert drafts > 0
    if one["speculation"] == "draft-model":
        assert accepted == drafts
        assert sum(step.rollbacks for step in steps) == 0
    else:
        assert sum(step.rollbacks for step in steps) > 0


@pytest.mark.parametrize("one", SPECULATIONS, ids=lambda one: str(one["speculation"]))
def test_drawn_tokens_are_those_of_plain_decoding_with_the_same_keys(
    folder: Path, model: Model, one: dict[str, object]
) -> None:
    sampling, prompts = SamplingParams(0.8, top_k=40, top_p=0.95), prompts_of(LENGTHS, seed=10)
    plain = small_engine(model, 16).generate(prompts, OUTPUT, sampling, seed=3)
    assert small_engine(model, 16, **drafted(folder, one)).generate(prompts, OUTPUT, sampling, seed=3) == plain
    plain_samples = small_engine(model, 16).generate_samples(prompts, OUTPUT, 3, sampling)
    engine = small_engine(model, 4, 640, **drafted(folder, one))
    assert engine.generate_samples(prompts, OUTPUT, 3, sampling) == plain_samples


def test_speculative_sampling_keeps_the_distribution(folder: Path, model: Model) -> None:
    """1,200 samples of the second output token against its exact distribution (chi-squared over the likely tokens):
    drafts that are right by chance must not be overdone, nor those that replace a wrong one (Leviathan et al. 2023)."""
    sampling, prompt = SamplingParams(0.7, top_k=4), prompts_of([12], seed=11)[0]
    expected: dict[int, float] = {}
    for first, share in restricted(reference_logits(folder, prompt)[-1], sampling).items():
        for second, part in restricted(reference_logits(folder, [*prompt, first])[-1], sampling).items():
            expected[first * 1000 + second] = share * part
    engine = small_engine(
        model, 16, 4096, speculation="first-layers", draft_layers=1, draft_tokens=2, max_sequences=200
    )
    found: dict[int, int] = {}
    for seed in range(6):
        for output in engine.generate_samples([prompt], 3, 200, sampling, seed=seed)[0]:
            key = output[0] * 1000 + output[1]
            found[key] = found.get(key, 0) + 1
    assert set(found) <= set(expected)
    statistic = sum((found.get(key, 0) - 1200 * share) ** 2 / (1200 * share) for key, share in expected.items())
    assert statistic < chi2.ppf(0.999, len(expected) - 1)


def restricted(logits: torch.Tensor, sampling: SamplingParams) -> dict[int, float]:
    best = logits.double().topk(sampling.top_k)
    return dict(zip(best.indices.tolist(), (best.values / sampling.temperature).softmax(-1).tolist(), strict=True))


def test_a_draft_that_does_not_suit_is_refused_with_a_way_out(folder: Path, model: Model) -> None:
    with pytest.raises(UsageError, match="3 layers"):
        small_engine(model, 16, speculation="first-layers", draft_layers=3)
    with pytest.raises(UsageError, match="vocabulary"):
        small_engine(model, 16, speculation="draft-model", draft_model="tiny-llama")
    with pytest.raises(UsageError, match="no model preset and no folder"):
        small_engine(model, 16, speculation="draft-model", draft_model=str(folder / "gone"))
    with pytest.raises(UsageError, match="declared"):
        small_engine(model, 16, speculation="prompt-lookup", acceptance_rate=0.5)


def test_the_draft_models_kv_is_counted(folder: Path, model: Model) -> None:
    """The same checkpoint as its own draft: half as many blocks in the same memory."""
    plain = small_engine(model, 16, 640)
    ahead = small_engine(model, 16, 640, speculation="draft-model", draft_model=str(folder))
    assert ahead.num_blocks * 2 == plain.num_blocks
    assert ahead.sizes.block_bytes == 2 * plain.sizes.block_bytes
