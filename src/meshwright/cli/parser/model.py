"""The options of what makes graphs of models: `meshwright capture`, `profile` and `zoo`."""

from argparse import BooleanOptionalAction
from typing import Any

from meshwright.cli.parser.option import (
    DEVICES,
    MODEL,
    add_autocast,
    add_batch,
    add_command,
    add_flag,
    add_foreach,
    add_json,
    add_loss_function,
    add_output,
    add_path,
    add_step,
    add_value,
    count,
    counts,
    positive,
)


def add_capture(commands: Any) -> None:
    """Add the command `meshwright capture` with its options."""
    parser = add_command(commands, "capture", "write a PyTorch training step as a graph file")
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    add_output(parser, "JSON, gzip when it ends in .gz", "FILE", required=True)
    add_batch(parser)
    add_step(parser)
    add_autocast(parser)
    add_loss_function(parser)
    text = "times of kernels, as `meshwright profile` measures them; of several the last counts"
    add_path(parser, "--profile", text, dest="profiles", action="append", default=[])
    add_flag(
        parser,
        "--compile",
        "as torch.compile runs the step: element-wise ops are merged, or have the times that "
        "profiles of a compiled run have",
    )
    add_foreach(parser)
    text = "weights that modules share are copies, which stages of a pipeline may hold apart"
    add_flag(parser, "--untie", text)
    text = "the model's outputs alone, in eval mode: no loss, gradients and optimiser"
    add_flag(parser, "--inference", text)
    parser.add_argument(
        "--no-cache",
        dest="use_cache",
        action="store_false",
        help="capture a model of the zoo again, and keep nothing",
    )
    add_json(parser)


def add_profile(commands: Any) -> None:
    """Add the command `meshwright profile` with its options."""
    parser = add_command(
        commands, "profile", "time the kernels of a training step on a device, or this CPU itself"
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"{MODEL}; without one, `--device cpu` measures what devices of type cpu are on this "
        f"machine, in seconds, for all commands, and `--device cuda` how fast the host launches "
        f"kernels",
    )
    parser.add_argument(
        "--device", required=True, choices=DEVICES, help="where kernels run: one of this machine"
    )
    text = "JSON, gzip when it ends in .gz; what the file has already is kept"
    add_output(parser, text, "FILE")
    parser.add_argument(
        "--type",
        dest="device_type",
        metavar="T",
        help="the device's type in clusters (default: by the name that it gives itself)",
    )
    text = "of a CPU (default: as many as `run` gives each rank, $OMP_NUM_THREADS or 1)"
    add_value(parser, "--threads", count, "N", text)
    parser.add_argument(
        "--batches",
        type=counts,
        metavar="B,...",
        help="samples a step at which kernels are timed, too, for microbatches and unequal "
        "replicas, besides --batch (default: its halves down to 1)",
    )
    add_flag(parser, "--again", "also time calls that the file has already")
    add_batch(parser)
    add_step(parser)
    add_autocast(parser)
    add_loss_function(parser)
    add_json(parser)


def add_calibrate(commands: Any) -> None:
    """Add the command `meshwright calibrate` with its options."""
    parser = add_command(
        commands,
        "calibrate",
        "measure this machine, a model's kernels and a short run, for the next plan",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    text = "write the graph, the cluster and the profile there, with the plan and its run"
    add_output(parser, text, required=True)
    parser.add_argument(
        "--device", required=True, choices=DEVICES, help="where ranks compute: on this machine"
    )
    text = "on how many devices (default: all GPUs that are found; on the CPU 1)"
    add_value(parser, "--ranks", count, "N", text)
    parser.add_argument(
        "--cluster",
        metavar="C",
        help="the devices, where they are known: a file of `cluster probe`, for instance "
        "(default: this machine is asked and measured)",
    )
    add_value(parser, "--budget", positive, "S", "seconds to search for a plan", 10.0)
    parser.add_argument("--method", default="auto", metavar="M", help="of the plan (default: auto)")
    add_value(parser, "--steps", count, "N", "steps to run", 10)
    parser.add_argument(
        "--compile",
        action=BooleanOptionalAction,
        help="time ops in the regions that TorchInductor makes of them, by running the step on one "
        "device, and run the plan so (default: on GPUs, as `run` does)",
    )
    parser.add_argument(
        "--batches",
        type=counts,
        metavar="B,...",
        help="as for `profile` (default: halves of the batch; with --compile none on one device)",
    )
    parser.add_argument(
        "--type", dest="device_type", metavar="T", help="as for `profile` (default: by its name)"
    )
    add_value(parser, "--threads", count, "N", "of a CPU, as for `profile`")
    add_batch(parser)
    add_step(parser)
    add_autocast(parser)
    add_loss_function(parser)
    add_json(parser)


def add_zoo(commands: Any) -> None:
    """Add the command `meshwright zoo` with its options."""
    parser = add_command(commands, "zoo", "list the models that need no file, or save one")
    add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="[save]")
    save = add_command(actions, "save", "write a model's graph to a file")
    save.add_argument("name", metavar="NAME", help="a model of the zoo")
    add_path(save, "file", "JSON, gzip when it ends in .gz")
    add_batch(save)
    add_step(save)
