"""The public functions. Turn what a user may give (a name, a path, an object) into the types of the
program and hand these on; decide nothing else."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from meshwright.argument import checked, need_flag, need_one_of, need_type
from meshwright.audit.record import audit_schema
from meshwright.calls import profile
from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.fact.import_files import import_files
from meshwright.cluster.schema import cluster_schema
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError, quoted
from meshwright.explain.explanation import explanation_schema
from meshwright.graph.graph import Graph
from meshwright.message import remark, warn
from meshwright.plan.answer import Answer, answer_schema
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.profile.profile import Measured, read_profile
from meshwright.question import (
    audit,
    draw_answer,
    explain,
    export,
    replan,
    report,
    sweep,
    whatif,
)
from meshwright.recall import open_answers, recall_or_search
from meshwright.replan.record import transition_schema
from meshwright.report.expected import with_facts
from meshwright.search.check import AnyScope
from meshwright.search.method.deploy.tree.net import read_prior
from meshwright.search.pool.engine import Engine, open_engine
from meshwright.simulate.record import simulation_schema
from meshwright.simulate.simulate import simulate as run_plan
from meshwright.simulate.timeline import Timeline
from meshwright.source import capture_model, load_graph, need_torch
from meshwright.whatif.record import sweep_schema, whatif_schema

if TYPE_CHECKING:
    from meshwright.execute.log import Callback
    from meshwright.execute.training import Training

__all__ = [
    "audit",
    "capture",
    "capture_model",
    "cluster",
    "explain",
    "export",
    "import_cluster",
    "load_graph",
    "master_weights",
    "open_engine",
    "plan",
    "profile",
    "read_profile",
    "replan",
    "report",
    "schema",
    "simulate",
    "sweep",
    "training",
    "whatif",
]


SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = MappingProxyType(
    {
        "answer": answer_schema,
        "simulation": simulation_schema,
        "explanation": explanation_schema,
        "audit": audit_schema,
        "cluster": cluster_schema,
        "whatif": whatif_schema,
        "sweep": sweep_schema,
        "replan": transition_schema,
    }
)


def _need_plan(plan: Plan | None, use: str) -> None:
    if plan is None:
        raise InputError(f"plan: there is none to {use}; the answer's binding says why")
    need_type(plan, Plan, "plan", "a Plan, as `Answer.plan` or `Plan.load` gives it")


def cluster(source: str | Path | Cluster) -> Cluster:
    """A cluster by catalogue name (`meshwright cluster list`) or path, or the cluster itself."""
    return load_cluster(source)


@checked
def import_cluster(
    files: Sequence[str | Path],
    *,
    devices: str | None = None,
    nics: str | None = None,
    name: str = "imported",
) -> Cluster:
    """The cluster that outputs of programs and files of services describe together.

    `files`: outputs of nvidia-smi, rocm-smi, ibstat, ibnetdiscover, ip, ethtool and lscpu, NCCL's
    topology XML, Slurm's topology and nodes, logs of nccl-tests, ASTRA-sim networks and nodes of
    Kubernetes, each recognised by its content; HOST=PATH says whose a file is that names no host.
    `devices` (such as "8 x h100") and `nics` ("8 x 400 Gb/s") hold for hosts of which no file says
    these. What is taken from the catalogue is remarked on standard error, contradictions are
    warned of.
    """
    if isinstance(files, str | Path):
        raise InputError(f"files: must be a list of paths, got {quoted(str(files))}")
    drawn = import_files(files, devices=devices, nics=nics, name=name)
    for doubt in drawn.doubts:
        warn(doubt)
    for each in drawn.taken:
        remark(f"not stated: {each}")
    return drawn.cluster


@checked
def capture(
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Any = "adamw",
    *,
    batch: int | None = None,
    autocast: Any = None,
    measured: Measured | None = None,
    batches: Sequence[int] = (),
    compile: bool = False,  # noqa: A002
    foreach: bool = False,
    untie: bool = False,
    inference: bool = False,
) -> Graph:
    """One training step of a PyTorch module as a Graph; nothing is allocated or computed.

    `model`, `args` (a sequence, a mapping of named inputs or one tensor) and `kwargs` may be real
    or on the meta device. `loss`: from the model's output to a scalar; None takes the output itself
    if it is one, else its `loss`. `optimizer`: sgd, momentum, adam or adamw, or one of
    torch.optim's; with "mixed-" before its name it updates copies of the parameters in fp32 (see
    `master_weights`). `batch`: the samples in the inputs; None takes the first dimension of the
    first tensor. `autocast`: a torch dtype such as torch.bfloat16. `measured`: the times of kernel
    calls that ops get, as `read_profile(path).measured()` has them, and `batches` the other numbers
    of samples that they were measured at (`Profile.batches`): what microbatches and unequal
    replicas take is read off them. `compile`: as torch.compile fuses it. `foreach`: parameters are
    updated as torch.optim does by default on CUDA, which moves more bytes and holds temporaries, in
    place of one fused kernel as `training` has it.
    `untie`: weights that modules share are copies, kept equal, so that a pipeline may hold an
    embedding on its first stage and the head tied to it on its last. `inference`: the model's
    outputs alone, in `eval` mode, without gradients, loss and optimiser.
    """
    need_torch()
    from meshwright.capture.capture import capture as capture_step

    return capture_step(
        model,
        args,
        kwargs,
        loss=loss,
        optimizer=optimizer,
        batch=batch,
        autocast=autocast,
        measured=measured,
        batches=batches,
        compile=compile,
        foreach=foreach,
        untie=untie,
        inference=inference,
    )


@checked
def plan(
    graph: str | Path | Graph,
    cluster: str | Path | Cluster,
    method: str = "auto",
    seed: int = 0,
    budget_seconds: float = 30.0,
    *,
    sharing: str = "fair",
    microbatches: Sequence[int] = (),
    scope: AnyScope | None = None,
    engine: Engine | None = None,
    allocate: bool = False,
    gap: float = 0.0,
    prior: str | Path | None = None,
    runtime: str = MESHWRIGHT.name,
    progress: Callable[[str], None] | None = None,
    fresh: bool = False,
) -> Answer:
    """Search for the fastest way to run a training step on a cluster.

    `graph` is a Graph, the path of a graph file, the name of a model of the zoo or a
    "package.module:factory" (see `load_graph`); `microbatches` are the numbers that pipelines
    may use (none: whatever is best); `scope` limits what a method looks at: a `Scope` for `hybrid`
    and `auto`, a `PipelineScope` for `pipeline`, a `QuickpScope` for `quickp`; `engine` (see
    `open_engine`) evaluates the candidates of `hybrid`, on all cores if none is given; the search
    ends when nothing can be faster by more than the part `gap` of the bound; `allocate` shares each
    host's network interfaces out to the destinations, too: the plan has `allocations`; `prior` is
    the file of a network that guides `deploy` (also of `auto`) in place of the one that comes with
    the package, as `python -m meshwright.learn` trains it; `runtime` is who will run the plan:
    meshwright, megatron, deepspeed, fsdp2 or torchtitan; `progress` receives a line of text now and
    then. What was answered before, for the same content, is answered from
    the user's cache, and `notes` say so; a longer budget goes on from there; `fresh` searches anew.
    That no plan fits is an answer too: `plan` is None.
    """
    need_flag(fresh, "fresh")
    need_type(engine, (Engine, type(None)), "engine", "an engine (see open_engine) or None")
    step, devices = load_graph(graph, say=progress), load_cluster(cluster)
    request = Request(
        graph=step, cluster=devices, method=method, seed=seed, budget_seconds=budget_seconds,
        sharing=sharing, microbatches=tuple(microbatches), scope=scope, allocate=allocate, gap=gap,
        runtime=runtime,
    )  # fmt: skip
    network = None if prior is None else read_prior(prior)
    known = open_answers(os.environ) if network is None and not fresh else None
    answer = recall_or_search(request, known, say=progress, engine=engine, prior=network)
    answer = replace(answer, draw=draw_answer)
    if answer.plan is None:
        return answer
    return with_facts(step, devices, answer, run_plan(step, devices, answer.plan, sharing=sharing))


@checked
def simulate(
    graph: str | Path | Graph,
    cluster: str | Path | Cluster,
    plan: Plan | None,
    *,
    sharing: str = "fair",
    granularity: str | None = None,
    with_links: bool = False,
    runtime: str | None = None,
) -> Timeline:
    """Predict one step of a plan: its time, every device's memory, what it waits for.

    `sharing` is "fair" (transfers share links) or "none" (each runs as if alone), `granularity`
    "op" (the default, unless the plan has too many), "part" (one instruction an action of a stage)
    or "layer" (the same by what whole layers cost); `with_links` records every link's rate over
    time; `runtime` is who runs the plan (meshwright, megatron, deepspeed, fsdp2 or torchtitan), by
    default whom it was planned for.
    """
    _need_plan(plan, "simulate")
    assert plan is not None
    loaded = load_graph(graph)
    return run_plan(
        loaded,
        load_cluster(cluster),
        replace(plan.in_ops(loaded), runtime=runtime or plan.runtime),
        sharing=sharing,
        granularity=granularity,
        with_links=with_links,
    )


def schema(form: str) -> dict[str, Any]:
    """The JSON Schema of what programs read or write: "answer" (`Answer.to_dict`, `plan --json` and
    `answer.json`), "simulation", "explanation", "whatif", "sweep", "replan" or "audit" (`--json`
    of the commands of these names and of `simulate` and `explain`) or "cluster" (cluster
    files)."""
    need_one_of(form, tuple(SCHEMAS), "schema")
    return SCHEMAS[form]()


def master_weights(params: Any, kind: Any = None, **settings: Any) -> Any:
    """An optimiser for a model in bf16 or fp16, which updates copies of the parameters in fp32.

    `params` and `settings` are as `kind` takes them, a class of torch.optim or of your own that
    updates every number by itself; None is torch.optim.AdamW. Its state is in fp32, too, and has
    each copy as `master`. `capture` and `training` take it, and so does a loop of your own. By name
    it is "mixed-adamw", "mixed-sgd" and so on.
    """
    need_torch("master_weights")
    from meshwright.capture.master import MasterWeights

    return MasterWeights(params, **({} if kind is None else {"kind": kind}), **settings)


@contextmanager
@checked
def training(
    plan: Plan | None,
    cluster: str | Path | Cluster,
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Any = "adamw",
    *,
    scheduler: Any = None,
    clip_norm: float | None = None,
    autocast: str | None = None,
    loss_scaling: bool | None = None,
    graph: Graph | None = None,
    learning_rate: float = 1e-3,
    is_mean: bool = True,
    allows_local_statistics: bool = False,
    allows_microbatch_statistics: bool = False,
    device: str | None = None,
    backend: str | None = None,
    stall_seconds: float = 120.0,
    checks_ops: bool = False,
    compile: bool | None = None,  # noqa: A002
    weights: str | Path | None = None,
    checkpoint: str | Path | None = None,
    every: int = 100,
    log: str | Path | None = None,
    tensorboard: str | Path | None = None,
    callbacks: "Sequence[Callback]" = (),
) -> "Iterator[Training]":
    """Train by a plan from this script, which torchrun has started once a device of the plan.

    `model`, `args`, `kwargs` and `loss` are as for `capture`; args are a whole batch, as a loader
    gives it: a tuple, or a mapping of what the model is given by name. `optimizer` is a name, then
    with `learning_rate`, or one of torch.optim or of your own that updates every number by itself,
    made for the model's parameters: its groups are read at every step, so that schedulers and
    whoever else may change them. `scheduler`, one of torch.optim.lr_scheduler, goes on after every
    step, and after `resume` is where it was. `clip_norm` clips the norm of all gradients.
    `autocast` is bf16 or fp16. `loss_scaling` scales losses before backward and leaves out steps
    whose gradients are not finite, as torch.amp.GradScaler does; None does so with fp16. `graph` is
    the one that was planned, None captures it again. `is_mean`: the loss is a mean over the batch,
    else a sum. A step whose loss is not finite raises NonFiniteError with the number of the step;
    `checks_ops` looks at every op's results, which takes time, and names the op that made the first
    such number. `compile`: regions of ops are compiled by TorchInductor, equal layers once; None
    does so on GPUs. `weights` is a folder of safetensors files in the Hub's layout: each rank reads
    its slices of them, and the model may be on the meta device. `checkpoint` is a folder whose
    latest checkpoint training goes on from, and which others are kept in: after `every` so many
    steps, at the end, and when torchrun or a scheduler asks to stop by SIGTERM. `log` is a CSV file
    with a row for each step, `tensorboard` a folder of its files; `callbacks` are called on the
    first rank with every step's `step`, `loss`, `learning_rate`, `seconds` and
    `samples_per_second`, when the next one was taken. What this yields has `loader(dataset)`,
    `step(*batch)`, which returns the loss, `evaluate(*batch)` and `validate(dataset)`, which return
    that of the model in `eval` mode, `losses()`, `measure(*batch)`, `save(folder)`,
    `resume(folder)` and `state_dict()`; all ranks make the same calls.
    """
    _need_plan(plan, "train by")
    assert plan is not None
    need_type(graph, (Graph, type(None)), "graph", "a Graph or None, which captures it again")
    need_torch("training")
    from meshwright.capture.inputs import as_inputs
    from meshwright.capture.torch_private import uncompiled
    from meshwright.capture.workload import Workload
    from meshwright.execute.groups import open_optimizer
    from meshwright.execute.settings import Settings
    from meshwright.execute.training import open_planned

    chosen = load_cluster(cluster)
    model, (given, named) = uncompiled(model), as_inputs(args)
    named |= kwargs or {}
    workload = Workload(name=type(model).__name__, model=model, args=given, kwargs=named, loss=loss)
    settings = Settings(
        device=device,
        backend=backend,
        optimizer=open_optimizer(optimizer, model, learning_rate),
        scheduler=scheduler,
        autocast=autocast,
        scales_loss=loss_scaling,
        clip_norm=clip_norm,
        learning_rate=learning_rate,
        is_mean=is_mean,
        allows_local_statistics=allows_local_statistics,
        allows_microbatch_statistics=allows_microbatch_statistics,
        stall_seconds=stall_seconds,
        checks_ops=checks_ops,
        compiles=compile,
        weights=None if weights is None else Path(weights),
        checkpoint=None if checkpoint is None else Path(checkpoint),
        every=every,
        log=None if log is None else Path(log),
        tensorboard=None if tensorboard is None else Path(tensorboard),
        callbacks=callbacks,
    )
    with open_planned(graph, chosen, plan, workload, settings) as opened:
        yield opened
