"""Clients that wait for their answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from kvbench.engine.serve import serve
from kvbench.workload.types import ImportReport, Workload
from tests.engine.fakes import fake_engine
from tests.workload.helpers import synthetic


def closed(clients: int, requests: int, *, think_s: float = 0.0, turns: int = 1) -> Workload:
    return synthetic(
        requests=requests,
        input_tokens=3,
        output_tokens=2,
        arrival={"kind": "closed-loop", "clients": clients, "think_time_s": think_s},
        sessions={"turns": turns},
    )


@pytest.mark.parametrize(("clients", "turns"), [(1, 1), (3, 1), (3, 2), (50, 1)])
def test_never_more_requests_in_flight_than_clients(clients: int, turns: int) -> None:
    served = serve(fake_engine(200, manager="real"), closed(clients, 20, turns=turns))
    assert len(served.requests) == 20
    assert max(step.active_sequences + step.waiting_sequences for step in served.steps) == min(clients, 20 // turns)


def test_a_client_sends_its_next_request_a_think_time_after_its_answer() -> None:
    served = serve(fake_engine(200, manager="real"), closed(1, 5, think_s=7.5))
    records = sorted(served.requests, key=lambda record: record.request_id)
    for before, after in pairwise(records):
        assert before.e2e_s is not None
        assert after.arrival_s == before.arrival_s + before.e2e_s + 7.5


def test_requests_are_taken_in_the_workload_s_order_whoever_is_free() -> None:
    workload = closed(2, 12)
    lengths = [replace(r, output_tokens=1 + 3 * (r.request_id % 3), output=None) for r in workload.requests]
    served = serve(fake_engine(200, manager="real"), replace(workload, requests=tuple(lengths)))
    arrivals = [record.arrival_s for record in sorted(served.requests, key=lambda record: record.request_id)]
    assert arrivals == sorted(arrivals)


def test_a_client_whose_request_cannot_be_served_goes_on() -> None:
    workload = closed(1, 6)
    too_long = replace(workload.requests[2], output_tokens=10_000, output=None)
    requests = (*workload.requests[:2], too_long, *workload.requests[3:])
    served = serve(fake_engine(200, manager="real"), replace(workload, requests=requests))
    reasons = {record.request_id: record.finish_reason for record in served.requests}
    assert reasons == {n: "rejected" if n == 2 else "length" for n in range(6)}


def test_a_session_is_over_when_a_turn_of_it_fails_and_the_client_takes_the_next() -> None:
    workload = closed(1, 9, turns=3)
    too_long = replace(workload.requests[3], output_tokens=10_000, output=None)
    requests = (*workload.requests[:3], too_long, *workload.requests[4:])
    served = serve(fake_engine(200, manager="real"), replace(workload, requests=requests))
    reasons = {record.request_id: record.finish_reason for record in served.requests}
    assert [reasons[n] for n in range(9)] == ["length"] * 3 + ["rejected"] * 3 + ["length"] * 3


def test_nothing_is_served_of_an_empty_closed_loop() -> None:
    report = ImportReport(source="synthetic", format="synthetic")
    served = serve(fake_engine(20, manager="real"), Workload((), report, "", 0, clients=4))
    assert served.requests == []
