"""The options of what runs plans: `meshwright run`, `compare` and `testbed`."""

from argparse import ArgumentParser, BooleanOptionalAction
from typing import Any

from meshwright.cli.parser.option import (
    CLUSTER,
    DEVICES,
    MODEL,
    PLAN_FOLDER,
    add_autocast,
    add_command,
    add_flag,
    add_json,
    add_loss_function,
    add_output,
    add_path,
    add_step,
    add_value,
    count,
    positive,
    whole,
)

NETWORKS = ("tc", "ovs")
"""What a testbed's allocations can be held by."""
RUN_NOTE = (
    "Under torchrun, hosts with several network interfaces use all of them, as cluster and "
    "allocations say, where their names are known: from the cluster's file (`interfaces`), or from "
    "the variable MESHWRIGHT_INTERFACES of each rank (eth0,eth1: in the order of the host's links "
    "to switches). With NCCL, NCCL_SOCKET_IFNAME and NCCL_IB_HCA decide."
)


def add_run(commands: Any) -> None:
    """Add the command `meshwright run` with its options."""
    parser = add_command(commands, "run", "train a model by a plan, on torch.distributed")
    parser.epilog = RUN_NOTE
    add_path(parser, "plan", PLAN_FOLDER, "PLAN")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", metavar="MODEL", help=MODEL)
    text = "wait for the planned time of every op instead of computing; communication is real"
    add_flag(source, "--emulate", text)
    source.add_argument(
        "--script",
        metavar="COMMAND",
        help="with --commands: a training script of one's own that calls mw.training, and its "
        "options, as 'train.py --epochs 3'",
    )
    add_value(parser, "--steps", count, "N", "steps to train", 10)
    parser.add_argument(
        "--device", choices=DEVICES, help="where ranks compute (default: cuda where there is one)"
    )
    parser.add_argument(
        "--backend", choices=("gloo", "nccl"), help="of torch.distributed (default: by device)"
    )
    parser.add_argument(
        "--compile",
        action=BooleanOptionalAction,
        help="compile regions of ops with TorchInductor, equal layers once (default: on GPUs, "
        "unless --check)",
    )
    add_step(parser, ", or package.module:function from the model to one of torch.optim")
    add_autocast(parser)
    add_loss_function(parser)
    _add_training(parser)
    _add_data(parser)
    _add_recovery(parser)
    _add_network(parser)
    text = "also train in one process in the plain way, and compare the losses"
    add_flag(parser, "--check", text)
    text = "write a CSV file with a row for each step: loss, learning rate, seconds, samples a "
    add_path(parser, "--log", f"{text}second")
    add_path(parser, "--tensorboard", "write the same for TensorBoard", "DIR")
    add_output(parser, "write the run and its traces there")
    add_json(parser)


def _add_training(parser: ArgumentParser) -> None:
    """How steps are taken."""
    add_value(parser, "--learning-rate", positive, "R", "of an optimizer by name", 1e-3)
    parser.add_argument(
        "--scheduler",
        metavar="FACTORY",
        help="package.module:function from the optimizer to one of torch.optim.lr_scheduler",
    )
    add_value(parser, "--clip-norm", positive, "N", "clip the norm of all gradients to this")
    parser.add_argument(
        "--loss-scaling",
        action=BooleanOptionalAction,
        help="scale losses before backward, and leave out steps whose gradients are not finite "
        "(default: with --autocast fp16)",
    )
    parser.add_argument(
        "--loss",
        choices=("mean", "sum"),
        default="mean",
        help="whether the loss is a mean over the samples of a batch or a sum (default: mean)",
    )
    text = "let batch normalisation see only the samples of its own device and microbatch"
    add_flag(parser, "--local-statistics", text)
    text = "let batch normalisation see only the samples of its microbatch, on all devices"
    add_flag(parser, "--microbatch-statistics", text)
    add_path(
        parser,
        "--weights",
        "start from the safetensors files of this folder (model.safetensors, or several and an "
        "index, as on the Hub) instead of random weights",
        "DIR",
    )
    add_value(parser, "--seed", whole, "N", "of weights and inputs", 0)


def _add_data(parser: ArgumentParser) -> None:
    """What is trained and validated on."""
    parser.add_argument(
        "--data",
        metavar="FACTORY",
        help="package.module:function that returns the dataset to train on (with __getitem__ and "
        "__len__, or one to iterate); a sample is what the model is called with, and each rank "
        "loads its own rows only (default: the model's own inputs, at every step)",
    )
    add_flag(parser, "--shuffle", "another order of samples in every epoch, by --seed")
    parser.add_argument(
        "--workers",
        type=whole,
        default=0,
        metavar="N",
        help="processes a rank that load data (default: 0, the rank itself)",
    )
    parser.add_argument(
        "--validation",
        metavar="FACTORY",
        help="package.module:function that returns a dataset whose loss is taken at the end, by "
        "the same plan with the model in eval mode",
    )
    parser.add_argument(
        "--validate-every",
        type=whole,
        default=0,
        metavar="N",
        help="take it after every N steps, too (default: 0, at the end alone)",
    )


def _add_network(parser: ArgumentParser) -> None:
    """What ranks speak over."""
    text = "only print the commands that start the ranks on the plan's hosts, by torchrun and by "
    add_flag(parser, "--commands", f"{text}Slurm")
    parser.add_argument(
        "--master",
        default="",
        metavar="HOST[:PORT]",
        help="in these commands: where the first host is found (default: its name, port 29500)",
    )
    add_flag(
        parser,
        "--testbed",
        "emulate the network of the plan's cluster on this machine meanwhile, with the plan's "
        "allocations (root)",
    )
    parser.add_argument(
        "--network",
        choices=NETWORKS,
        help="what holds allocations in the testbed: tc, or Open vSwitch (default: tc)",
    )
    _add_testbed_name(parser)


def _add_recovery(parser: ArgumentParser) -> None:
    """What outlasts a failure."""
    text = (
        "keep checkpoints there, also when asked to stop by Ctrl-C or SIGTERM, and resume from it"
    )
    add_path(parser, "--checkpoint", text, "DIR")
    add_value(parser, "--every", count, "N", "steps between them", 100)
    text = "how often ranks are started again after one failed"
    add_value(parser, "--restarts", whole, "N", text, 0)
    add_flag(
        parser,
        "--elastic",
        "where a host is lost (all its ranks were killed or do not answer), plan for those that "
        "are left and go on from the last checkpoint",
    )
    text = "seconds to search for such a plan (default: a fifth of what the plan's search had)"
    add_value(parser, "--replan-budget", positive, "S", text)
    text = "seconds of waiting after which a rank is taken for hung"
    add_value(parser, "--stall", positive, "S", text, 120.0)


def add_compare(commands: Any) -> None:
    """Add the command `meshwright compare` with its options."""
    parser = add_command(commands, "compare", "hold a plan's prediction against a run of it")
    add_path(parser, "plan", PLAN_FOLDER, "PLAN")
    add_path(
        parser,
        "runs",
        "a run file, or a folder that holds run.json.gz; of several runs the last is shown, and "
        "what all found slower or faster than thought is said",
        "RUN",
        nargs="+",
    )
    add_path(parser, "--trace", "write a trace of both for ui.perfetto.dev there")
    for name, text in (
        ("graph", "the graph with the ops' measured times"),
        ("cluster", "the cluster with the links' measured rates and latencies"),
        ("profile", "the measured times of kernel calls; what the file has already is kept"),
    ):
        add_path(parser, f"--write-{name}", f"write {text}")
    add_json(parser)


def add_testbed(commands: Any) -> None:
    """Add the command `meshwright testbed` with its actions and options."""
    parser = add_command(commands, "testbed", "emulate a cluster's network on this machine (root)")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = add_command(actions, "up", "build hosts as network namespaces with shaped links")
    _add_testbed_network(up)
    _add_testbed_name(up)
    add_json(up)
    run = add_command(actions, "run", "build it, run a command, take it down")
    _add_testbed_network(run)
    _add_testbed_name(run)
    run.add_argument("program", nargs="+", metavar="COMMAND", help="after --, with its arguments")
    _add_testbed_name(add_command(actions, "down", "take it down, or what is left of it"))


def _add_testbed_network(parser: ArgumentParser) -> None:
    parser.add_argument(
        "cluster",
        metavar="CLUSTER|PLAN",
        help=f"{CLUSTER}; or a folder as `meshwright plan -o` writes it, to have its allocations",
    )
    parser.add_argument(
        "--network",
        choices=NETWORKS,
        default=NETWORKS[0],
        help="what hosts are switched and shaped by: tc, or Open vSwitch (default: tc)",
    )


def _add_testbed_name(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--name", default="mw", metavar="N", help="to have several at once (default: mw)"
    )
