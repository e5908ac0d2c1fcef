"""Starts the ranks of a plan on this machine, or in a testbed, and stays with them."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from meshwright.cli.console import print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.plan_folder import copy_plan, write_answer
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, quoted
from meshwright.execute.attempt import Launch
from meshwright.execute.environment import HOST, INTERFACE, INTERFACES, LOOPBACK
from meshwright.graph.graph import Graph
from meshwright.interpreter import module_command
from meshwright.message import remark, say
from meshwright.network.script import Kind as Network
from meshwright.network.testbed.apply import find_host, rank_prefixes, renew
from meshwright.plan.answer import Answer
from meshwright.plan.check import resolve
from meshwright.plan.plan import Plan
from meshwright.planned import Planned
from meshwright.units import GIB, format_bytes

if TYPE_CHECKING:
    from meshwright.elastic.recovery import Recovery

REPORT = "MESHWRIGHT_REPORT"
"""The launcher's variable: the file for what the first rank would print. The launcher prints it
once all have ended: a rank killed after the last step would have it printed again."""
TRIAL = "MESHWRIGHT_TRIAL"
"""The launcher's variable for a process that tries the plan before ranks start: the file for the
reason, where the plan is refused."""
PLAN = "MESHWRIGHT_PLAN"
"""The launcher's variable: the folder of the plan that ranks run in place of their command's."""
RANK_BYTES = 0.25 * GIB
"""What a rank of a tiny model takes of the memory for itself, torch and its code included
(0.27 GiB on 2026-11-15)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A plan whose ranks are to be started, and where."""

    graph: Graph
    cluster: Cluster
    plan: Plan
    testbed: str | None
    """The name of the testbed that is up for it; None: there is none."""
    renews: Network | None = None
    """What holds allocations in a testbed that may be built anew for other plans; None: it must
    stay as it is."""
    planned: Planned | None = None
    """What was asked of the search for the plan, where it may have to be asked again; None: the
    plan stays, whatever happens."""


def used_devices(graph: Graph, cluster: Cluster, plan: Plan) -> list[int]:
    """The numbers of the devices that a plan uses; each is a rank."""
    used: list[int] = np.unique(resolve(graph, cluster, plan).replica_device).tolist()
    return used


def rank_hosts(graph: Graph, cluster: Cluster, plan: Plan) -> list[str]:
    """The host of each rank of a plan."""
    return [cluster.devices[device].host for device in used_devices(graph, cluster, plan)]


def check_memory(num_ranks: int, total_bytes: float) -> None:
    """Refuse to start more ranks than a machine can hold even if the model were nothing."""
    if num_ranks * RANK_BYTES > total_bytes:
        raise InputError(
            f"run: the plan uses {num_ranks:,} devices, and as many ranks need at least "
            f"{format_bytes(num_ranks * RANK_BYTES)} of memory, this machine has "
            f"{format_bytes(total_bytes)}; start them on several by torchrun"
        )


def start_ranks(arguments: Namespace, started: Started) -> int:
    """Run this command once a rank, in a testbed or here; the exit code."""
    from meshwright.execute.fault import TERMINATED
    from meshwright.execute.launch import launch, run_alone
    from meshwright.execute.process import Guard

    hosts = rank_hosts(started.graph, started.cluster, started.plan)
    if arguments.model:
        training = f"training {arguments.model} on {len(hosts):,} ranks"
        is_own = ":" in arguments.model
        doing = f"importing and calling {arguments.model}" if is_own else training
        again = "; all steps train on its one batch, --data names a dataset"
        remark(doing + ("" if arguments.data else again))
    keeps = arguments.checkpoint is not None or arguments.output is not None
    code = int(ExitCode.DONE)
    with Guard() as guard:
        starter = _Starter(arguments, started, guard.folder)
        first = starter.make_launch(hosts)
        if arguments.model and len(hosts) > 1:  # one rank alone refuses as early as a trial would
            refusal = guard.folder / "refusal"
            variables = {TRIAL: str(refusal)}
            code = run_alone(first.command, len(hosts), variables, arguments.stall, guard)
            if refusal.exists():
                raise InputError(refusal.read_text(encoding="utf-8"))
        recovery = None
        if started.planned is not None:
            recovery = starter.make_recovery(started.planned, first)
        code = code or launch(
            first,
            max_restarts=arguments.restarts,
            find_next=(lambda _: None) if recovery is None else recovery.find_next,
            look=(lambda _: None) if recovery is None else recovery.look,
            stop_seconds=arguments.stall if keeps and arguments.model else 0.0,
            guard=guard,
            say=say,
        )
        starter.print_report(recovery)
    if code == TERMINATED:
        say("terminated")
    return code


@dataclass(slots=True)
class _Starter:
    """What all attempts of one run share."""

    arguments: Namespace
    started: Started
    folder: Path
    """The launcher's own, which goes with it."""
    plans: list[str] = field(default_factory=list)
    """The folders of the plans that were run, where they are kept."""

    @property
    def report(self) -> Path:
        """What the first rank prints."""
        return self.folder / "report"

    def make_launch(self, hosts: Sequence[str], plan: Path | None = None) -> Launch:
        """What starts a rank on each of these hosts; `plan`: by which plan, None: the command's."""
        total = os.sysconf("SC_PAGE_SIZE") * float(os.sysconf("SC_PHYS_PAGES"))
        check_memory(len(hosts), total)
        variables = {"TORCH_CPP_LOG_LEVEL": "ERROR", REPORT: str(self.report)}
        testbed = self.started.testbed
        address = find_host(testbed, hosts[0]).address if testbed else "127.0.0.1"
        return Launch(
            command=module_command("meshwright", *sys.argv[1:]),
            num_ranks=len(hosts),
            prefixes=rank_commands(hosts, testbed),
            environment=variables if plan is None else {**variables, PLAN: str(plan)},
            master_address=address,
            hosts=hosts if self.arguments.elastic else (),
        )

    def make_recovery(self, planned: Planned, first: Launch) -> "Recovery":
        """What goes on where hosts are lost."""
        from meshwright.elastic.recovery import Ground, Recovery  # and all searches with it

        output = self.arguments.output
        if output is not None:
            folder = _next_folder(output)
            copy_plan(self.arguments.plan, folder)
            self.plans.append(str(folder))
        ground = Ground(
            keep_plan=self._keep,
            make_launch=self._launch,
            checkpoints=self.arguments.checkpoint,
            budget_seconds=self.arguments.replan_budget,
            no_plan=int(ExitCode.NO_PLAN),
            say=say,
        )
        return Recovery(ground, planned, first)

    def _keep(self, answer: Answer) -> tuple[Path, str | None]:
        output = self.arguments.output
        folder = _next_folder(self.folder if output is None else output)
        assert answer.request is not None
        write_answer(folder, answer.request.graph, answer.request.cluster, answer)
        if output is None:
            return folder, None
        self.plans.append(str(folder))
        return folder, str(folder)

    def _launch(self, answer: Answer, folder: Path) -> Launch:
        assert answer.request is not None
        assert answer.plan is not None
        request, started = answer.request, self.started
        if started.testbed and started.renews:
            renew(
                request.cluster,
                started.testbed,
                answer.plan,
                started.renews,
                was_shaped=bool(started.plan.allocations),
            )
        return self.make_launch(rank_hosts(request.graph, request.cluster, answer.plan), folder)

    def print_report(self, recovery: "Recovery | None") -> None:
        """Print what the first rank has left, with the losses of hosts where these are kept."""
        text = self.report.read_text(encoding="utf-8") if self.report.exists() else ""
        if recovery is None or not self.arguments.json:
            sys.stdout.write(text)
            return
        if text or recovery.losses:
            losses = [each.to_dict() for each in recovery.losses]
            run = json.loads(text) if text else {}
            print_json({**run, "host_losses": losses, "plans": self.plans})


def _next_folder(folder: Path) -> Path:
    """The folder of the next plan: plan-1, plan-2, ..."""
    number = 1
    while (made := folder / f"plan-{number}").exists():
        number += 1
    return made


def rank_commands(hosts: Sequence[str], testbed: str | None) -> list[list[str]]:
    """What to put before the command of each rank, by its host: namespace and variables."""
    for host in hosts:
        if "\0" in host:
            raise InputError(
                f"run: host {quoted(host)}: its name must have no NUL, as variables do"
            )
    entries = rank_prefixes(testbed, hosts) if testbed else [[] for _ in hosts]
    found = []
    for host, entry in zip(hosts, entries, strict=True):
        # On the loopback all hosts are one, whatever interfaces theirs have.
        names = [each.name for each in find_host(testbed, host).interfaces] if testbed else []
        variables = {
            HOST: host,
            INTERFACE: names[0] if names else os.environ.get(INTERFACE, LOOPBACK),
            INTERFACES: ",".join(names),
        }
        found.append([*entry, "env", *(f"{name}={value}" for name, value in variables.items())])
    return found
