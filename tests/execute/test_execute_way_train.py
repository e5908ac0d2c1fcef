"""Training over several interfaces, here two process groups on the loopback, is that of one."""

import os
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from rails import rails_cluster  # noqa: E402
from ranks import RANKS, Ranks  # noqa: E402
from small_models import captured, make_workload, train_eagerly  # noqa: E402
from small_plans import (  # noqa: E402
    data_plan,
    factor_plan,
    pipeline_plan,
    random_placement,
)
from small_trainer import make_trainer, take_steps  # noqa: E402

from meshwright.cluster.interface import Interface  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.environment import INTERFACES  # noqa: E402
from meshwright.execute.seat import check_names, name_rails, own_names  # noqa: E402
from meshwright.execute.way import Rails  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Allocation, Plan, ScheduleKind, Sync  # noqa: E402
from quick import few  # noqa: E402

STEPS = 3
TOLERANCE = 1e-5


def allocate(plan: Plan) -> Plan:
    """Every pair of hosts has its own shares of both rails, some all on one."""
    shares = ((0.5, 0.5), (0.75, 0.25), (0.2, 0.8), (1.0, 0.0))
    pairs = [(one, other) for one in range(RANKS) for other in range(RANKS) if one != other]
    allocations = tuple(
        Allocation(
            source=f"h{one}",
            target=f"h{other}",
            bytes_per_second=1e6 * (1 + place),
            shares=shares[place % len(shares)],
        )
        for place, (one, other) in enumerate(pairs)
    )
    return Plan(parts=plan.parts, schedule=plan.schedule, allocations=allocations)


def train_on_rails(
    rank: int, name: str, graph: Graph, plan: Plan, variable: str
) -> tuple[list[float], dict[str, Any], tuple[int, int], int]:
    """Train on one rank; also how many transfers and groups go in several pieces."""
    from meshwright.execute import way
    from meshwright.execute.lowered import lower_frozen
    from meshwright.execute.seat import find_wiring

    cluster = rails_cluster(RANKS, (1e6, 1e6))
    program = lower_frozen(graph, cluster, plan).program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(way, "LEAST_BYTES", 0)  # all of these messages are small
        patch.setenv(INTERFACES, variable)
        wiring = find_wiring(cluster, program, range(RANKS), cluster.hosts, rank)
        trainer = make_trainer(rank, make_workload(name), graph, plan, cluster, wiring=wiring)
        losses = take_steps(trainer, STEPS)
    state = {key: each.clone() for key, each in trainer.state.items()}
    exchange = trainer.exchange
    divided = [
        sum(len(each.division) > 1 for each in bundles.values())
        for bundles in (exchange.channels, {**exchange.groups, **exchange.gatherers})
    ]
    trainer.close()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo", "put back"
    return losses, state, (divided[0], divided[1]), len(exchange.opened)


KINDS = {
    "placement": lambda graph: random_placement(graph, RANKS, 2),
    "pipeline": lambda graph: pipeline_plan(graph, RANKS, 4, ScheduleKind.ONE_F_ONE_B, 8),
    "data": lambda graph: data_plan(graph, RANKS),
    "unequal": lambda graph: data_plan(graph, RANKS, (0.5, 0.25, 0.125, 0.125)),
    "server": lambda graph: data_plan(graph, RANKS, sync=Sync.PARAMETER_SERVER),
    "factors": lambda graph: factor_plan(graph, RANKS),
}


def check(ranks: Ranks, plan: Plan, variable: str = "lo,lo") -> list[Any]:
    losses, tensors = train_eagerly("language", STEPS)
    answers = ranks.call(RANKS, train_on_rails, "language", captured("language"), plan, variable)
    seen = set()
    for answer in answers:
        assert answer[0] == pytest.approx(losses, rel=TOLERANCE, abs=TOLERANCE)
        for key in answer[1].keys() & tensors.keys():
            torch.testing.assert_close(answer[1][key], tensors[key], rtol=TOLERANCE, atol=TOLERANCE)
            seen.add(key)
    assert seen == set(tensors)
    return answers


@pytest.mark.parametrize("kind", few(KINDS, "data"))
def test_training_with_shares_is_that_of_one_process(ranks: Ranks, kind: str) -> None:
    answers = check(ranks, allocate(KINDS[kind](captured("language"))))
    pairs, groups = answers[0][2]
    assert pairs or kind in ("data", "unequal", "factors")
    assert groups or kind in ("placement", "pipeline")


@pytest.mark.parametrize("kind", few(["placement", "data"], "data"))
def test_without_allocations_rails_are_those_of_routes(ranks: Ranks, kind: str) -> None:
    answers = check(ranks, KINDS[kind](captured("language")))
    assert answers[0][2] == (0, 0)
    assert answers[0][3] >= (2 if kind == "placement" else 1)


@pytest.mark.parametrize("variable", few(["", "lo"], "lo"))
def test_without_several_names_everything_is_on_one_interface(ranks: Ranks, variable: str) -> None:
    answers = check(ranks, allocate(KINDS["placement"](captured("language"))), variable)
    assert answers[0][2:] == ((0, 0), 0)


def test_as_many_interfaces_as_links_must_be_named() -> None:
    check_names("h0", 2, ("eth0", "eth1"))
    message = (
        "host 'h0': has 2 links to switches in the cluster, so MESHWRIGHT_INTERFACES must .* 3"
    )
    with pytest.raises(InputError, match=message):
        check_names("h0", 2, ("eth0", "eth1", "eth2"))


def test_names_come_from_the_variable_or_from_the_clusters_own_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = rails_cluster(2, (1.0, 1.0))
    # In the file's order the second link of h1 stands first; links decide.
    named = tuple(
        Interface(
            host=f"h{host}",
            switch=f"s{rail}",
            name=f"en{rail}",
            address=f"10.{rail}.0.{host + 1}/24",
        )
        for rail in (1, 0)
        for host in (0, 1)
    )
    cluster = replace(plain, interfaces=named)
    monkeypatch.delenv(INTERFACES, raising=False)
    assert own_names(cluster, 1, "h1") == ("en0", "en1")
    assert own_names(cluster, 1, "laptop") == (), "another machine plays the host"
    assert own_names(plain, 1, "h1") == ()
    monkeypatch.setenv(INTERFACES, "lo,lo")
    assert own_names(cluster, 1, "h1") == ("lo", "lo")
    monkeypatch.setenv(INTERFACES, "")
    assert own_names(cluster, 1, "h1") == ()


def test_a_rail_is_called_what_the_host_calls_its_interface() -> None:
    rails = Rails(places=({0: 0}, {0: 1, 1: 0}), num_interfaces=(2, 1), pairs={}, rings={})
    assert name_rails(rails, 0, ("a", "b")) == {0: "a", 1: "b"}
    assert name_rails(rails, 1, ("c",)) == {1: "c"}
