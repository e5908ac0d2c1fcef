"""Random plans of `deploy` on random graphs: everybody gets what it reads, once, and nobody waits
for ever."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_plans import WAYS, deploy_plan
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, Sync, place_ops
from meshwright.program.bucket import effective_splits, fill_buckets, tie_sums
from meshwright.program.lower import lower
from meshwright.program.program import Kind, Program
from meshwright.simulate.simulate import run_program, simulate
from small import connected, layers, rails, stages, star

DEVICES = ("d0", "d1", "d2", "d3")
SIZES = st.sampled_from([8.0, 4e6, 4e7])
NEAR = 1e-9


@st.composite
def step_graphs(draw: st.DrawFn) -> Graph:
    """A step with skips, a loss of two terms, and gradients that are added up before an update."""
    count = draw(st.integers(1, 4))
    builder = GraphBuilder("step", batch=draw(st.integers(4, 8)))
    second = {"any": 1.0}
    forward, outputs = [], []
    for i in range(count):
        forward.append(builder.add_op(f"f{i}", seconds=second, group=i, saved_bytes=8.0))
        fixed = draw(st.sampled_from([0.0, 0.0, 0.3]))
        size = draw(SIZES)
        outputs.append(builder.add_tensor(forward[i], size, fixed_bytes=fixed * size))
        for j in {i - 1, draw(st.integers(-1, i - 1))} - {-1}:
            builder.add_use(outputs[j], forward[i])
    loss = builder.add_op("loss", split=Split.SUM, seconds=second)
    builder.add_use(outputs[-1], loss)
    twice = builder.add_op("twice", split=Split.NONE, seconds=second)
    value = builder.add_tensor(loss, 4.0, [twice])
    seed = builder.add_op("seed", phase=Phase.BACKWARD, split=Split.NONE, seconds=second)
    gradient = builder.add_tensor(seed, 4.0)
    if draw(st.booleans()):
        builder.add_tensor(twice, 4.0, [builder.add_op("thrice", split=Split.NONE)])
    weights = []
    for i in reversed(range(count)):
        back = builder.add_op(f"b{i}", phase=Phase.BACKWARD, seconds=second, partner=forward[i])
        builder.add_use(gradient, back)
        builder.add_use(outputs[i], back)
        if i == count - 1 and draw(st.booleans()):
            builder.add_use(value, back)
        gradient = builder.add_tensor(back, draw(SIZES))
        weight = builder.add_op(f"w{i}", phase=Phase.BACKWARD, split=Split.SUM, seconds=second)
        builder.add_use(gradient, weight)
        builder.add_use(outputs[i], weight)
        weights.append(builder.add_tensor(weight, draw(SIZES)))
    for i, tensor in enumerate(weights):
        update = f"u{i}"
        if draw(st.booleans()):
            total = builder.add_op(
                f"a{i}", phase=Phase.BACKWARD, split=Split.SUM, group=i, seconds=second
            )
            builder.add_use(tensor, total)
            builder.add_use(draw(st.sampled_from(weights)), total)
            tensor = builder.add_tensor(total, 8.0)
        op = builder.add_op(update, phase=Phase.UPDATE, split=Split.NONE, group=i, seconds=second)
        builder.add_use(tensor, op)
    return builder.finish()


class Reader:
    """Goes through a program in the order of a simulation and knows what every buffer has."""

    def __init__(self, graph: Graph, plan: Plan, program: Program) -> None:
        self.graph, self.program, self.rows = graph, program, program.instructions
        placement = resolve(graph, CLUSTERS[0], plan)
        self.split, self.partial = effective_splits(graph, placement, plan)
        self.bucket = fill_buckets(graph, placement, plan).of_tensor
        self.in_rows = (graph.split[graph.tensor_source] == Split.BATCH) & ~graph.tensor_partial
        self.read_by: dict[int, list[int]] = defaultdict(list)
        for instruction, buffer in program.reads.tolist():
            self.read_by[instruction].append(buffer)
        self.send_of = {
            int(row["task"]): number
            for number, row in enumerate(self.rows)
            if row["kind"] == Kind.SEND
        }
        self.added: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        """By tensor and op that goes on summing: whose terms its replicas add."""

    def has(self, buffer: int) -> tuple[float, float] | Counter[int]:
        """Its rows, or the instructions whose terms it is the sum of."""
        record = self.program.buffers[buffer]
        writer, tensor = int(record["writer"]), int(record["tensor"])
        row = self.rows[writer]
        if row["kind"] == Kind.COMPUTE:
            if not self.in_rows[tensor]:
                return Counter([writer])
            is_whole = self.split[row["op"]] == Split.NONE
            return (0.0, 1.0) if is_whole else (float(row["rows_from"]), float(row["rows_to"]))
        if row["kind"] == Kind.RECEIVE:
            send = self.send_of[int(row["task"])]
            (sent,) = self.read_by[send]
            held = self.has(sent)
            if isinstance(held, Counter):
                return held
            assert held[0] <= row["rows_from"] + NEAR
            assert held[1] >= row["rows_to"] - NEAR
            return float(row["rows_from"]), float(row["rows_to"])
        if row["kind"] in (Kind.ALL_GATHER, Kind.ALL_REDUCE):
            members = np.flatnonzero(self.rows["task"] == row["task"])
            pieces = [self.has(b) for each in members.tolist() for b in self.read_by[each]]
        else:
            pieces = [self.has(b) for b in self.read_by[writer]]
        return self.joined(pieces, (float(row["rows_from"]), float(row["rows_to"])))

    def joined(
        self, pieces: Iterable[tuple[float, float] | Counter[int]], rows: tuple[float, float]
    ) -> tuple[float, float] | Counter[int]:
        total: Counter[int] = Counter()
        spans = []
        for each in pieces:
            if isinstance(each, Counter):
                total += each
            else:
                spans.append((max(each[0], rows[0]), min(each[1], rows[1])))
        if total:
            return total
        end = rows[0]
        for low, high in sorted(spans):
            assert low == pytest.approx(end, abs=NEAR), "rows must neither miss nor overlap"
            end = high
        assert end == pytest.approx(rows[1], abs=NEAR)
        return rows

    def check_reads(self) -> None:
        for number, row in enumerate(self.rows):
            if row["kind"] == Kind.COMPUTE:
                self.check_op(number)
        for (tensor, _), found in self.added.items():
            assert found == self.terms(tensor)

    def terms(self, tensor: int) -> Counter[int]:
        """All that must be added up: of what replicas duplicate, any one."""
        source = int(self.graph.tensor_source[tensor])
        made = np.flatnonzero((self.rows["op"] == source) & (self.rows["kind"] == Kind.COMPUTE))
        return Counter(made.tolist()[:1] if self.split[source] == Split.NONE else made.tolist())

    def check_op(self, number: int) -> None:
        row, graph = self.rows[number], self.graph
        op = int(row["op"])
        wants = (0.0, 1.0)
        if self.split[op] != Split.NONE:
            wants = float(row["rows_from"]), float(row["rows_to"])
        of_tensor = {int(self.program.buffers["tensor"][b]): b for b in self.read_by[number]}
        for tensor in graph.inputs[op].tolist():
            adds_up = graph.tensor_partial[tensor] and (
                graph.phase[graph.tensor_source[tensor]] == Phase.BACKWARD
            )
            if adds_up and self.split[op] == Split.SUM:
                if tensor in of_tensor:
                    held = self.has(of_tensor[tensor])
                    assert isinstance(held, Counter)
                    self.added[tensor, op] += held
                else:
                    self.added[tensor, op] += Counter()
                continue
            assert self.program.buffers["device"][of_tensor[tensor]] == row["device"]
            held = self.has(of_tensor[tensor])
            if not isinstance(held, Counter):
                assert held[0] <= wants[0] + NEAR
                assert held[1] >= wants[1] - NEAR
            elif adds_up and self.partial[tensor] and (self.bucket[tensor] < 0 or len(held) > 1):
                assert held == self.terms(tensor)  # a bucket sums where its terms are made
            else:
                (maker,) = held
                if self.partial[tensor] and not adds_up:  # of the very samples that it sees
                    assert (self.rows[maker]["rows_from"], self.rows[maker]["rows_to"]) == (
                        row["rows_from"],
                        row["rows_to"],
                    )

    def check_transfers(self) -> None:
        """What is sent arrives, and is as large as its rows."""
        graph = self.graph
        for number, row in enumerate(self.rows):
            if row["kind"] != Kind.RECEIVE:
                continue
            send = self.rows[self.send_of[int(row["task"])]]
            assert (send["device"], send["peer"]) == (row["peer"], row["device"])
            assert send["bytes"] == row["bytes"]
            tensor = int(row["tensor"])
            if tensor >= 0:
                size, fixed = graph.tensor_bytes[tensor], graph.fixed_tensor_bytes[tensor]
                share = row["rows_to"] - row["rows_from"] if self.in_rows[tensor] else 1.0
                assert row["bytes"] == pytest.approx(fixed + (size - fixed) * share)
            assert (self.program.buffers["bytes"][self.program.buffers["writer"] == number]) == (
                pytest.approx(row["bytes"])
            )

    def check_servers(self) -> None:
        """Buckets take turns; a server adds what all others sent to its own."""
        broadcasts = self.rows[self.rows["kind"] == Kind.BROADCAST]
        for task in np.unique(broadcasts["task"]).tolist():
            members = broadcasts[broadcasts["task"] == task]
            group = self.program.groups[int(members["group"][0])]
            assert sorted(group) == sorted(members["device"].tolist())
        sums = np.flatnonzero((self.rows["kind"] == Kind.SUM) & (self.rows["tensor"] < 0))
        for number in sums.tolist():
            received = [b for b in self.read_by[number] if self.program.buffers["tensor"][b] < 0]
            assert len(received) >= 1


CLUSTERS = (connected(4, 1e7, 1e-6), star([1e7] * 4, 1e-5), rails(2, per_host=2, rail=1e7))


@settings(max_examples=60)
@given(graph=step_graphs(), seed=st.integers(0, 1_000_000))
def test_readers_of_random_plans_get_exactly_what_they_read(graph: Graph, seed: int) -> None:
    plan = deploy_plan(graph, DEVICES, seed, WAYS)
    program = lower(graph, CLUSTERS[0], plan)
    reader = Reader(graph, plan, program)
    reader.check_reads()
    reader.check_transfers()
    reader.check_servers()


@settings(max_examples=60)
@given(
    graph=step_graphs(),
    seed=st.integers(0, 1_000_000),
    cluster=st.sampled_from(CLUSTERS),
    sharing=st.sampled_from(["none", "fair"]),
)
def test_random_plans_run_to_their_end(
    graph: Graph, seed: int, cluster: object, sharing: str
) -> None:
    plan = deploy_plan(graph, DEVICES, seed, WAYS)
    program = lower(graph, cluster, plan)  # type: ignore[arg-type]
    timeline = run_program(program, cluster, sharing=sharing)  # type: ignore[arg-type]
    assert np.isfinite(timeline.finish).all()
    assert (timeline.finish >= timeline.start).all()
    held = np.array(timeline.peak_bytes)
    assert np.isfinite(held).all()


def test_ops_of_one_loss_are_tied() -> None:
    builder = GraphBuilder("loss")
    f = builder.add_op("f0")
    loss = builder.add_op("l0", split=Split.SUM)
    total = builder.add_op("t0", split=Split.NONE)
    back = builder.add_op("b0", phase=Phase.BACKWARD)
    weight = builder.add_op("w0", phase=Phase.BACKWARD, split=Split.SUM)
    builder.add_tensor(f, 4.0, [loss, back])
    builder.add_tensor(loss, 4.0, [total, back])
    builder.add_tensor(back, 4.0, [weight])
    builder.add_tensor(weight, 4.0)
    assert tie_sums(builder.finish()).tolist() == [0, 1, 1, 1, 4]


def test_units_of_replicas_that_duplicate_are_refused() -> None:
    graph = layers(1, gradient=6)
    plan = stages(graph, [["d0", "d1"]], "gpipe", 2, sync=Sync.DUPLICATE)
    with pytest.raises(InputError, match="part 0 duplicates its ops on 2 replicas; use granul"):
        simulate(graph, connected(2), plan, granularity="part")


def test_a_stage_may_duplicate_what_another_shares_out() -> None:
    # Two microbatches of 3 s in all: f0 on half of each takes 1/4 s; d2 and d3 each collect both
    # halves of its byte (1/2 s), and f1 runs on all of them, 1/2 s a microbatch.
    builder = GraphBuilder("stages")
    first = builder.add_op("f0", seconds={"any": 1.0})
    second = builder.add_op("f1", seconds={"any": 1.0})
    builder.add_tensor(first, 2.0, [second])
    graph = builder.finish()
    plan = Plan(
        parts=(
            Part(ops=("f0",), devices=("d0", "d1")),
            Part(ops=("f1",), devices=("d2", "d3"), sync=Sync.DUPLICATE),
        ),
        schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=2),
    )
    timeline = simulate(graph, connected(4), plan, sharing="none")
    assert timeline.step_seconds == pytest.approx(0.25 + 0.5 + 2 * 0.5)


@pytest.mark.parametrize("readers", [("a0", "u0"), ("u0", "a0")])
def test_a_gradient_of_one_device_is_sent_to_another_once(readers: tuple[str, str]) -> None:
    # A sum goes on summing it, and an update reads it as it is: of one replica both are the same.
    builder = GraphBuilder("once")
    gradient = builder.add_op("w0", phase=Phase.BACKWARD, split=Split.SUM, seconds={"any": 0.0})
    for name in readers:
        is_sum = name == "a0"
        phase = Phase.BACKWARD if is_sum else Phase.UPDATE
        split = Split.SUM if is_sum else Split.NONE
        builder.add_op(name, phase=phase, split=split, seconds={"any": 0.0})
    builder.add_tensor(gradient, 7.0, [1, 2])
    graph = builder.finish()
    plan = place_ops(graph.op_names, [0, 1, 1], DEVICES)
    timeline = simulate(graph, connected(2), plan)
    assert np.count_nonzero(timeline.program.instructions["kind"] == Kind.SEND) == 1
    assert timeline.step_seconds == pytest.approx(7.0)
