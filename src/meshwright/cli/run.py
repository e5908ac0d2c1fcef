"""`meshwright run`: train by a plan, or emulate it; starts the ranks itself unless torchrun did."""

import contextlib
import io
import os
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.commands import without
from meshwright.cli.console import print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.folder import check_folder
from meshwright.cli.machine import remark_cpu
from meshwright.cli.progress import shown_steps
from meshwright.cli.run_outcome import check_losses, present_outcome
from meshwright.cli.start import (
    PLAN,
    REPORT,
    TRIAL,
    Started,
    check_memory,
    start_ranks,
    used_devices,
)
from meshwright.cli.testbed import VARIABLE
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, os_errors, quoted
from meshwright.execute.environment import is_rank, read_place, run_folder
from meshwright.execute.process import die_with_parent
from meshwright.execute.roll import answer_roll
from meshwright.execute.runnable import check_runnable, check_step, check_trainable
from meshwright.export.launch.command import launch_commands
from meshwright.files import write_bytes
from meshwright.function import check_function
from meshwright.graph.fuse import may_be_fused
from meshwright.graph.graph import Graph
from meshwright.message import remark
from meshwright.network.script import Kind as Network
from meshwright.network.testbed.apply import built, check_machine, is_up
from meshwright.network.testbed.testbed import check_name
from meshwright.plan.plan import Plan
from meshwright.planned import read_plan_folder, read_planned
from meshwright.program.expand.synchronise import with_batch_statistics
from meshwright.source import find_function, find_optimizer, make_workload, need_torch

if TYPE_CHECKING:
    from meshwright.capture.workload import Workload
    from meshwright.execute.settings import Settings

_GPUS = ("nvidia[0-9]*", "kfd", "dxg")
"""Device files of GPUs' drivers on Linux."""


def run_run(arguments: Namespace) -> int:
    """Run this rank of a plan, or start all of them."""
    if arguments.output is not None:
        check_folder(arguments.output)
    if arguments.checkpoint is not None and arguments.model:
        _check_writable(arguments.checkpoint)
    place = read_place()  # a wrong variable is refused before anything is read or started
    if place.is_agents_store:
        die_with_parent()  # as early as can be: importing torch takes seconds
    need_torch("run")
    if is_rank() and PLAN in os.environ:
        arguments.plan = Path(os.environ[PLAN])
    graph, cluster, plan = read_plan_folder(arguments.plan)
    if arguments.local_statistics:
        plan = replace(plan, batch_statistics=False)
    else:
        plan = with_batch_statistics(graph, plan)
    if arguments.script and not arguments.commands:
        raise InputError("--script: needs --commands; torchrun starts scripts, not Meshwright")
    if arguments.script and graph.is_inference:  # a script may know what to do with others
        check_trainable(graph)
    is_others = is_rank() and run_folder() is None and TRIAL not in os.environ
    if arguments.elastic and (arguments.commands or is_others):
        raise InputError(
            "--elastic: needs the launcher of `meshwright run`, which starts ranks on this machine "
            "alone; torchrun and Slurm start the hosts that are left once `meshwright replan` has "
            "made a plan for them"
        )
    if arguments.commands:
        return _print_commands(arguments, graph, cluster, plan)
    if is_rank():
        return _run_rank(arguments, graph, cluster, plan)
    return _launch(arguments, graph, cluster, plan)


def _check_writable(folder: Path) -> None:
    """Write to a folder now, rather than find out at the first checkpoint that one cannot."""
    check_folder(folder)
    with os_errors(f"{folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def _check_options(arguments: Namespace) -> None:
    """Refuse what emulated ranks cannot do, and what no rank can on the CPU."""
    if arguments.elastic and (arguments.emulate or arguments.checkpoint is None):
        raise InputError("--elastic: needs --model and --checkpoint, to go on from")
    if arguments.replan_budget is not None and not arguments.elastic:
        raise InputError("--replan-budget: needs --elastic")
    if arguments.emulate and arguments.check:
        raise InputError("--check: needs --model, emulated ranks compute no losses")
    if arguments.data is None and (arguments.shuffle or arguments.workers):
        raise InputError("--shuffle, --workers: need --data")
    if (arguments.data or arguments.validation) and arguments.emulate:
        raise InputError("--data, --validation: need --model, emulated ranks read none")
    if arguments.validate_every and arguments.validation is None:
        raise InputError("--validate-every: needs --validation")
    for option in ("model", "loss-function", "data", "validation", "optimizer", "scheduler"):
        name = getattr(arguments, option.replace("-", "_"))
        if name and (":" in name or option not in ("model", "optimizer")):
            check_function(option, name)
    kind = "cpu" if arguments.emulate else arguments.device
    if arguments.backend == "nccl" and kind == "cpu":
        raise InputError("backend nccl: ranks must compute on cuda, not on cpu; use gloo")
    if kind == "cuda" and not has_gpu():  # torch says so, too, but takes seconds to be imported
        raise InputError("device cuda: this machine has none; use --device cpu")


def has_gpu(folder: Path = Path("/dev")) -> bool:
    """Whether there is any GPU that torch might use: one of NVIDIA, of AMD, or that of WSL."""
    return any(path for name in _GPUS for path in folder.glob(name))


def _launch(arguments: Namespace, graph: Graph, cluster: Cluster, plan: Plan) -> int:
    """Start a process for each device of the plan, and stay with them."""
    _builder(arguments, graph)  # an unknown name is refused here, once
    if arguments.weights is not None:  # and so are files that are none
        from meshwright.execute.weights import open_weights

        open_weights(arguments.weights)
    devices = used_devices(graph, cluster, plan)
    check_memory(len(devices), os.sysconf("SC_PAGE_SIZE") * float(os.sysconf("SC_PHYS_PAGES")))
    _check_options(arguments)
    planned = read_planned(arguments.plan) if arguments.elastic else None
    if arguments.model:
        check_trainable(graph)
        check_step(graph, _optimizer(arguments), arguments.autocast)
        remark_cpu(cluster)
    check_runnable(graph, cluster, plan)
    started = partial(Started, graph=graph, cluster=cluster, plan=plan, planned=planned)
    outer = os.environ.get(VARIABLE)
    if not arguments.testbed:
        if arguments.network:
            raise InputError(f"--network: needs --testbed, got {arguments.network} alone")
        return start_ranks(arguments, started(testbed=outer))
    if outer:
        raise InputError(f"--testbed: this runs in testbed {quoted(outer)} already")
    kind: Network = arguments.network or "tc"
    check_machine(kind)
    was_up = is_up(arguments.name)
    with built(cluster, check_name(arguments.name), plan=plan, kind=kind) as testbed:
        for text in testbed.remarks:
            remark(f"testbed {quoted(testbed.name)}: {text}")
        return start_ranks(
            arguments, started(testbed=testbed.name, renews=None if was_up else kind)
        )


def _print_commands(arguments: Namespace, graph: Graph, cluster: Cluster, plan: Plan) -> int:
    """Print what starts the ranks on several hosts: a script, or this command again without what
    is for those who start them."""
    check_runnable(graph, cluster, plan)
    devices = used_devices(graph, cluster, plan)
    own = ["-m", "meshwright", *without(sys.argv[1:], "--master", "--restarts")]
    words = shlex.split(arguments.script) if arguments.script else own
    for line in launch_commands(cluster, devices, words, arguments.master, arguments.restarts):
        print_line(line)
    return ExitCode.DONE


def _run_rank(arguments: Namespace, graph: Graph, cluster: Cluster, plan: Plan) -> int:
    report = os.environ.get(REPORT)
    if report is not None and not Path(report).parent.is_dir():
        raise InputError(
            f"{REPORT}: must be a file in a folder that is there, got {quoted(report)}"
        )
    folder = run_folder()
    if folder is not None:  # from the beginning, since importing torch takes seconds
        answer_roll(folder, read_place().rank)
    if arguments.emulate:
        from meshwright.execute.emulate import hasten_wakeups

        hasten_wakeups()
    from meshwright.execute.fault import TERMINATED, end_process
    from meshwright.execute.keep import stop_restarts
    from meshwright.execute.session import run_rank
    from meshwright.execute.trial import try_plan

    settings, build, code = _settings(arguments), _builder(arguments, graph), int(ExitCode.DONE)
    if TRIAL in os.environ and build is not None:
        with _refused_to(Path(os.environ[TRIAL])):
            graph, plan, settings = _in_ops(graph, cluster, plan, build, settings)
            try_plan(graph, cluster, plan, build, settings)
        end_process(code)
    if build is not None:
        graph, plan, settings = _in_ops(graph, cluster, plan, build, settings)
    outcome = run_rank(graph, cluster, plan, build, settings, remark)
    if outcome.rank == 0:
        with handed_over():
            present_outcome(arguments, graph, cluster, plan, outcome)
        if arguments.check and not outcome.was_stopped:
            code = check_losses(outcome, graph)
    if outcome.was_stopped:
        stop_restarts()
        code = TERMINATED
    # Threads of torch may still be in C++, where the interpreter's end would abort the process.
    end_process(code)
    return code


def _settings(arguments: Namespace) -> "Settings":
    """How a rank trains, as the options say."""
    from meshwright.execute.settings import Settings

    optimizer = _optimizer(arguments)
    return Settings(
        steps=arguments.steps,
        device=arguments.device,
        backend=arguments.backend,
        optimizer=find_function("optimizer", optimizer) if ":" in optimizer else optimizer,
        scheduler=find_function("scheduler", arguments.scheduler) if arguments.scheduler else None,
        autocast=arguments.autocast,
        learning_rate=arguments.learning_rate,
        clip_norm=arguments.clip_norm,
        scales_loss=arguments.loss_scaling,
        is_mean=arguments.loss == "mean",
        allows_local_statistics=arguments.local_statistics,
        allows_microbatch_statistics=arguments.microbatch_statistics,
        seed=arguments.seed,
        checkpoint=arguments.checkpoint,
        weights=arguments.weights,
        every=arguments.every,
        stall_seconds=arguments.stall,
        is_checked=arguments.check,
        compiles=arguments.compile,
        is_measured=arguments.emulate or arguments.output is not None,
        log=arguments.log,
        tensorboard=arguments.tensorboard,
        data=find_function("data", arguments.data) if arguments.data else None,
        validation=find_function("data", arguments.validation) if arguments.validation else None,
        validate_every=arguments.validate_every,
        shuffles=arguments.shuffle,
        num_workers=arguments.workers,
        callbacks=shown_steps(arguments),
    )


def _in_ops(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    build: "Callable[[], Workload]",
    settings: "Settings",
) -> tuple[Graph, Plan, "Settings"]:
    """The same in the ops of the step, where they may be merged ones."""
    if not may_be_fused(graph):
        return graph, plan, settings
    from meshwright.capture.deferred.deferred import record
    from meshwright.execute.unmerge import unmerge

    return unmerge(graph, cluster, plan, record(build, settings.seed).workload, settings)[:3]


@contextlib.contextmanager
def _refused_to(path: Path) -> Iterator[None]:
    """Leave the reason of a refusal in a file, and say nothing: ranks would say the rest again."""
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    try:
        yield
    except InputError as error:
        write_bytes(path, str(error).encode())


@contextlib.contextmanager
def handed_over() -> Iterator[None]:
    """Leave what is printed to the launcher, where there is one."""
    path, text = os.environ.get(REPORT), io.StringIO()
    if path is None:
        yield
        return
    with contextlib.redirect_stdout(text):
        yield
    write_bytes(Path(path), text.getvalue().encode())


def _optimizer(arguments: Namespace) -> str:
    """The name of the optimiser, or of a function that makes one."""
    given = str(arguments.optimizer)
    return find_optimizer(arguments.model, arguments.precision, given) if arguments.model else given


def _builder(arguments: Namespace, graph: Graph) -> "Callable[[], Workload] | None":
    if arguments.emulate:
        return None
    return make_workload(
        arguments.model,
        graph.batch,
        sequence=arguments.sequence,
        precision=arguments.precision,
        loss=arguments.loss_function,
    )
