"""Playing a workload: scheduled arrivals, follow-up turns, deadlines, interrupts."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from kvbench.engine.clock import WallClock
from kvbench.engine.loop import EngineLoop
from kvbench.engine.serve import DeadlineError, serve
from kvbench.engine.telemetry import StepRecord
from kvbench.errors import UsageError
from kvbench.workload.request import Request, Segment
from kvbench.workload.tokens import token_ids
from kvbench.workload.types import ImportReport, Workload
from tests.engine.fakes import VOCAB, fake_engine, next_token


def request(request_id: int, tokens: int = 4, output: int = 2, **more: object) -> Request:
    prompt = (Segment(request_id, 0, tokens),)
    return Request(request_id, tokens, output, prompt, **more)  # type: ignore[arg-type]


def workload(*requests: Request) -> Workload:
    return Workload(requests, ImportReport("synthetic", "synthetic"), "digest", seed=3)


def test_requests_are_let_in_at_their_scheduled_arrival_and_not_before() -> None:
    """Steps of 1 s; arrivals at 0, 0.5 and 10: the second waits for the step in flight, the third finds it idle."""
    engine = fake_engine(32)
    served = serve(engine, workload(request(0), request(1, arrival_s=0.5), request(2, arrival_s=10.0)))
    records = {record.request_id: record for record in served.requests}
    assert [records[i].queue_time_s for i in range(3)] == [0.0, 0.5, 0.0]
    assert [records[i].e2e_s for i in range(3)] == [2.0, 2.5, 2.0]
    assert [step.t_s for step in served.steps] == [0.0, 1.0, 2.0, 10.0, 11.0]
    assert served.wall_s == 12.0


def test_a_follow_up_arrives_its_think_time_after_the_answer_before_it() -> None:
    chain = [request(0), request(1, after=0, think_time_s=3.0), request(2, after=1, think_time_s=0.25, arrival_s=1.0)]
    served = serve(fake_engine(32), workload(*chain))
    assert [record.arrival_s for record in served.requests] == [0.0, 5.0, 7.25]
    assert [record.e2e_s for record in served.requests] == [2.0, 2.0, 2.0]


def test_tokens_are_those_of_the_workload_and_outputs_forced_when_it_names_them() -> None:
    forced = (Segment(77, 5, 3),)
    named = Request(1, 4, 3, (Segment(9, 2, 4),), output=forced)
    served = serve(fake_engine(32), workload(request(0), named))
    prompt = token_ids([Segment(0, 0, 4)], 3, VOCAB).tolist()
    first = next_token(prompt)
    assert served.outputs[0] == [first, next_token([*prompt, first])]
    assert served.outputs[1] == token_ids(forced, 3, VOCAB).tolist()


def test_a_request_behind_a_rejected_one_is_rejected_with_the_reason() -> None:
    """Request 0 is longer than the context; 1 and 2 follow it in turn, 3 does not."""
    chain = [request(0, 300), request(1, after=0), request(2, after=1), request(3)]
    served = serve(fake_engine(32), workload(*chain))
    records = {record.request_id: record for record in served.requests}
    assert [records[i].finish_reason for i in range(4)] == ["rejected", "rejected", "rejected", "length"]
    assert "exceed the maximum context of 256" in (records[2].error or "")
    assert (records[2].error or "").startswith("request 1 before it was not served: request 0 before it")


def test_a_long_chain_of_rejections_does_not_recurse() -> None:
    chain = [request(0, 300), *(request(i, after=i - 1) for i in range(1, 3000))]
    served = serve(fake_engine(32), workload(*chain))
    assert len(served.requests) == 3000


def test_the_deadline_raises_a_typed_error_with_what_has_finished() -> None:
    engine = fake_engine(32)
    with pytest.raises(DeadlineError, match="1 of 3 requests finished") as caught:
        serve(engine, workload(request(0), request(1, output=50), request(2, arrival_s=99.0)), deadline_s=10.0)
    assert [record.request_id for record in caught.value.served.requests] == [0]
    assert len(caught.value.served.steps) == 11
    check_is_usable(engine)


def test_the_deadline_is_seen_while_idle() -> None:
    with pytest.raises(DeadlineError):
        serve(fake_engine(32), workload(request(0, arrival_s=1e9)), deadline_s=5.0)


def check_is_usable(engine: EngineLoop) -> None:
    assert not engine.has_work
    engine.check_invariants()
    assert engine.manager.stats().blocks_used == 0
    assert len(serve(engine, workload(request(0))).requests) == 1


def test_an_interrupt_is_obeyed_between_two_steps() -> None:
    """SIGINT comes during the second step: that step still ends, nothing after it begins, the handler is restored."""
    engine, seen = fake_engine(32), []

    def on_step(step: StepRecord) -> None:
        seen.append(step)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        serve(engine, workload(request(0, output=9), request(1, output=9)), on_step=on_step)
    assert len(seen) == 2
    assert signal.getsignal(signal.SIGINT) is before
    check_is_usable(engine)


def test_a_second_interrupt_does_not_wait() -> None:
    engine = fake_engine(32)

    def on_step(step: StepRecord) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second interrupt was swallowed")

    with pytest.raises(KeyboardInterrupt):
        serve(engine, workload(request(0)), on_step=on_step)
    check_is_usable(engine)


def test_an_interrupt_wakes_an_idle_engine() -> None:
    engine = fake_engine(32)
    engine.clock = WallClock()
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        serve(engine, workload(request(0, arrival_s=3600.0)))
    timer.join()


def test_serving_outside_the_main_thread_needs_no_signals() -> None:
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(len(serve(fake_engine(32), workload(request(0))).requests)), daemon=True
    )
    thread.start()
    thread.join()
    assert found == [1]


def test_a_failing_step_leaves_an_idle_engine() -> None:
    engine = fake_engine(32)

    def fail(step: StepRecord) -> None:
        raise RuntimeError("no more disk")

    with pytest.raises(RuntimeError, match="no more disk"):
        serve(engine, workload(request(0), request(1)), on_step=fail)
    check_is_usable(engine)


@pytest.mark.parametrize(
    "requests",
    [
        (request(0), request(1, after=5)),
        (request(0), request(1, after=2), request(2, after=1)),
        (request(0), request(1, after=1)),
    ],
)
def test_a_request_that_waits_for_one_that_never_comes_is_refused(requests: tuple[Request, ...]) -> None:
    with pytest.raises(UsageError, match="wait for one that never comes"):
        serve(fake_engine(32), workload(*requests))


def test_a_workload_with_a_doubled_id_is_refused() -> None:
    with pytest.raises(UsageError, match="same id"):
        serve(fake_engine(32), workload(request(0), request(0, after=0)))


def test_an_engine_that_is_serving_is_not_served_again() -> None:
    engine = fake_engine(32)

    def again(step: StepRecord) -> None:
        serve(engine, workload(request(5)))

    with pytest.raises(UsageError, match="already serving"):
        serve(engine, workload(request(0)), on_step=again)


def test_wall_clock_waits_until_the_moment_and_restarts_at_zero() -> None:
    clock = WallClock()
    clock.wait_until(0.02)
    assert clock.now() >= 0.02
    clock.wait_until(-1.0)
    clock.restart()
    assert clock.now() < 60
