"""The public functions about answers: why, what if, elsewhere. Turn what a user may give into the
types of the program and hand these on; decide nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from meshwright.argument import checked, need_number, need_one_of, need_type, read_choice
from meshwright.audit.audit import Audit
from meshwright.audit.load import audit_file
from meshwright.change.read import read_changes
from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.explain.explain import SIMULATIONS, explain_plan, need_request
from meshwright.explain.explanation import Explanation
from meshwright.export.exported import Exported
from meshwright.export.name import TARGETS
from meshwright.export.write import NEEDS_TORCH, export_plan, write_files
from meshwright.graph.graph import Graph
from meshwright.page.entry import make_entry
from meshwright.page.figure import write_figures
from meshwright.page.load import next_lines
from meshwright.page.sheet import PageSheet
from meshwright.page.write import draw_page, write_page
from meshwright.plan.answer import Answer
from meshwright.plan.request import Request
from meshwright.planned import Planned, read_planned
from meshwright.replan.change import change_devices
from meshwright.replan.transition import Transition, plan_transition
from meshwright.search.check import check_request
from meshwright.source import load_graph, need_torch
from meshwright.units import parse_bytes_per_second
from meshwright.whatif.price import read_price
from meshwright.whatif.sweep import Objective, Sweep, read_axes, sweep_request
from meshwright.whatif.whatif import WhatIf, answer_whatif


@checked
def audit(
    config: str | Path,
    model: str | Path | Graph | None = None,
    cluster: str | Path | Cluster = "",
    *,
    batch: int | None = None,
    microbatches: int | None = None,
    budget_seconds: float = 30.0,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """What a present set-up takes on a cluster, and the best that the same program can be told.

    `config` is a file of Megatron-LM's arguments, a DeepSpeed JSON, a torchtitan TOML or Python
    module (`file.py:function`), or an accelerate YAML; nothing in it is executed. `model` is as for
    `plan`; None takes the one that the file states. `batch` and `microbatches` say what the file
    does not.
    """
    need_type(config, (str, Path), "config", "the path of a configuration")
    need_type(model, (str, Path, Graph, type(None)), "model", "a model's name, a Graph or None")
    return audit_file(
        Path(config),
        model,
        load_cluster(cluster),
        batch=batch,
        microbatches=microbatches,
        budget_seconds=budget_seconds,
        progress=progress,
    )


@checked
def export(answer: Answer, target: str, folder: str | Path, *, model: str = "") -> Exported:
    """Write the plan of an answer as files of another program.

    `target` is one that `meshwright export --help` lists; `folder` may exist or not. `model` names
    the code of the model, for targets that need it. What cannot be expressed there is in
    `left_out` of what is returned, and in EXPORT.md with what it costs.
    """
    need_type(answer, Answer, "answer", "an Answer, as `meshwright.plan` gives it")
    need_one_of(target, tuple(TARGETS), "target")
    need_type(folder, (str, Path), "folder", "the path of a folder")
    if target in NEEDS_TORCH:
        need_torch(f"target {target}")
    if answer.plan is None or answer.request is None:
        raise InputError(f"answer: must have a plan and its request, got {answer!r:.200}")
    exported = export_plan(replace(answer.request, model=model), answer.plan, target)
    write_files(exported, Path(folder))
    return exported


@checked
def explain(
    answer: str | Path | Answer,
    *,
    simulations: int = SIMULATIONS,
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Why an answer's plan takes as long as it does, and what each of its decisions is worth.

    `answer` is what `plan` returned, or the path of a folder that `meshwright plan -o` wrote;
    `simulations` is how many neighbouring plans are simulated at the most; `progress` receives a
    line of text now and then. Where no plan fits, the smallest changes that do are searched for.
    """
    need_type(answer, (Answer, str, Path), "answer", "an Answer, or the path of a plan's folder")
    if isinstance(answer, Answer):
        return explain_plan(
            need_request(answer.request),
            answer.plan,
            method=answer.method,
            bound_seconds=answer.bound_seconds,
            binding=answer.binding,
            runner_ups=answer.runner_ups,
            simulations=simulations,
            progress=progress,
        )
    planned = read_planned(Path(answer))
    return explain_plan(
        planned.request,
        planned.plan,
        method=planned.method,
        bound_seconds=planned.bound_seconds,
        binding=planned.binding,
        simulations=simulations,
        progress=progress,
    )


@checked
def report(
    graph: str | Path | Graph,
    cluster: str | Path | Cluster,
    answer: Answer,
    file: str | Path,
    *,
    others: Sequence[Answer] = (),
    explanation: Explanation | None = None,
    whatif: WhatIf | None = None,
    figures: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write what is known of an answer as one HTML file, which opens without a network.

    `answer` is one of `plan` for this graph and cluster; `others`, for the same, are held beside
    it. `explanation` and `whatif` are what these functions return of the answer, as tables; without
    an explanation what limits the step is found here. `figures` is a folder for each figure as SVG
    and PNG, which needs matplotlib.
    """
    need_type(answer, Answer, "answer", "an Answer, as `meshwright.plan` gives it")
    need_type(file, (str, Path), "file", "the path of a file")
    need_type(figures, (str, Path, type(None)), "figures", "the path of a folder or None")
    need_type(explanation, (Explanation, type(None)), "explanation", "an Explanation or None")
    need_type(whatif, (WhatIf, type(None)), "whatif", "a WhatIf or None")
    step, devices = load_graph(graph, say=progress), load_cluster(cluster)
    for each in (answer, *others):
        need_type(each, Answer, "others", "a sequence of Answers")
        asked = each.request
        if asked and (asked.cluster.name, asked.graph.name) != (devices.name, step.name):
            raise InputError(
                f"answer: must be of {step.name} on {devices.name}, is of {asked.graph.name} on "
                f"{asked.cluster.name}"
            )
    told = (("explanation", explanation), ("whatif", whatif))
    for name, found in ((name, found) for name, found in told if found is not None):
        if found.model != step.name:
            raise InputError(f"{name}: must be of {step.name}, is of {found.model}")
    if explanation is not None and explanation.cluster != devices.name:
        raise InputError(
            f"explanation: must be of cluster {devices.name}, is of {explanation.cluster}"
        )
    entries = []
    for number, each in enumerate((answer, *others)):
        is_first = number == 0
        entries.append(
            make_entry(
                step,
                devices,
                each,
                name="" if not others else f"{number + 1}: {each.method}",
                explanation=explanation if is_first else None,
                whatif=whatif.to_dict() if is_first and whatif is not None else None,
                commands=next_lines(step, devices, each.plan, None),
            )
        )
    write_page(entries, file, progress or (lambda _: None))
    if figures is not None:
        write_figures(entries, Path(figures))


def draw_answer(answer: Answer) -> PageSheet:
    """The report of an answer that knows what was asked."""
    request = answer.request
    assert request is not None, "a search says what was asked of it"
    commands = next_lines(request.graph, request.cluster, answer.plan, None)
    entry = make_entry(request.graph, request.cluster, answer, commands=commands)
    return PageSheet(html=draw_page([entry]))


@checked
def whatif(
    answer: Answer | str | Path,
    *,
    prices: Sequence[str] = (),
    budget_seconds: float | None = None,
    workers: int | None = None,
    each: bool = False,
    progress: Callable[[str], None] | None = None,
    **changes: Any,
) -> WhatIf:
    """What the step would be after changes of devices, network or batch, made together.

    `answer` is one of `plan`, or a folder of `meshwright plan -o`. `changes` are texts, or lists of
    them: link="leaf0=2x", nic="800Gb/s", latency="nic=2us", memory="h100=141GB", speed="h100=2x",
    memory_rate="2x", type="h100=h200", devices="+8", hosts="-1", without="host3", batch="2x". None
    at all: a table of what each resource doubled and halved brings. `prices` are such as
    "h100=2.10/h", of devices or hosts; `budget_seconds` is for all searches together, by default
    the request's own for each and four times that for the table; `each`: also each change alone;
    `workers` are the processes that search, by default one a core.
    """
    planned = _asked(answer)
    return answer_whatif(
        planned.request,
        planned.plan,
        read_changes(changes),
        prices=[read_price(text) for text in prices],
        budget_seconds=budget_seconds,
        workers=workers,
        each=each,
        progress=progress,
    )


@checked
def replan(
    answer: Answer | str | Path,
    *,
    cluster: str | Path | Cluster | None = None,
    bandwidth: str | Path | None = None,
    budget_seconds: float | None = None,
    steps_to_checkpoint: float | None = None,
    storage: str | None = None,
    progress: Callable[[str], None] | None = None,
    **changes: Any,
) -> Transition:
    """Plan anew on a changed cluster, from the plan that was there, and say what moving takes.

    `answer` is one of `plan`, or a folder of `meshwright plan -o`. The changed cluster is `cluster`
    or the old one, with `changes` as `whatif` takes them (without="host3", hosts="+1", link=...)
    and with the measured rates of a file `bandwidth`, which maps names of links to rates.
    `budget_seconds` is for the search, by default a seventh of the request's;
    `steps_to_checkpoint` how many steps are left until a checkpoint is written anyway, and
    `storage` what the storage of checkpoints gives, such as "5 GB/s".
    """
    planned = _asked(answer)
    changed = change_devices(
        planned.request.cluster,
        None if cluster is None else load_cluster(cluster),
        read_changes(changes),
        None if bandwidth is None else Path(bandwidth),
    )
    rate = None if storage is None else parse_bytes_per_second(storage, "storage")
    if steps_to_checkpoint is not None:
        need_number(steps_to_checkpoint, "steps_to_checkpoint")
    if budget_seconds is not None:
        need_number(budget_seconds, "budget_seconds", is_positive=True)
    return plan_transition(
        planned,
        changed,
        budget_seconds=budget_seconds,
        steps_to_checkpoint=steps_to_checkpoint,
        storage_bytes_per_second=rate,
        progress=progress,
    )


@checked
def sweep(
    model: Answer | Graph | str | Path,
    cluster: str | Path | Cluster | None = None,
    *,
    method: str = "auto",
    seed: int = 0,
    objective: str = "time",
    deadline_seconds: float = inf,
    weak: bool = False,
    prices: Sequence[str] = (),
    budget_seconds: float | None = None,
    workers: int | None = None,
    progress: Callable[[str], None] | None = None,
    **axes: Any,
) -> Sweep:
    """Plan a model for every combination of some values, each with its bound.

    `model` is as `plan` takes it, with `cluster`, `method` and `seed`; or an answer or a folder of
    `meshwright plan -o`, which have their own. `axes` are changes as `whatif` takes them, with
    commas between values: devices="8,16,32", batch="64,128", link="leaf0=1x,2x,4x", or lists of
    such texts; the first is that of the curve. `weak`: the batch grows with the devices.
    `objective` says what `best` is best by: time (the most samples a second), cost (of a sample,
    with `prices`) or memory (most left); with `deadline_seconds` and prices it is the cheapest
    point whose step is no longer.
    `budget_seconds` is for all searches together.
    """
    if cluster is None:
        need_type(model, (Answer, str, Path), "model", "an answer, a folder, or with a cluster")
        request = _asked(model).request  # type: ignore[arg-type]
    else:
        devices = load_cluster(cluster)
        need_type(model, (Graph, str, Path), "model", "a model where a cluster is given")
        graph = load_graph(model, say=progress)  # type: ignore[arg-type]
        request = Request(graph=graph, cluster=devices, method=method, seed=seed)
        check_request(graph, method, seed, request.budget_seconds, request.sharing, (), None)
    return sweep_request(
        request,
        read_axes(axes),
        objective=read_choice(objective, Objective, "objective"),
        deadline_seconds=deadline_seconds,
        prices=[read_price(text) for text in prices],
        is_weak=weak,
        budget_seconds=budget_seconds,
        workers=workers,
        progress=progress,
    )


def _asked(source: Answer | str | Path) -> Planned:
    """What was asked, and the plan in ops of its graph, of an answer or of a folder."""
    if not isinstance(source, Answer):
        need_type(source, (str, Path), "answer", "an Answer or a folder of `meshwright plan -o`")
        return read_planned(Path(source))
    request, plan = source.request, source.plan
    if request is None:
        raise InputError("answer: must be one of `meshwright.plan`, which keeps what was asked")
    return Planned(request=request, plan=None if plan is None else plan.in_ops(request.graph))
