"""What an update of a traced step reads: its parameter, the optimiser's tensors, the gradients."""

from collections.abc import Hashable, Mapping

from torch.fx import Node

from meshwright.capture.ledger import Kernel, op_name
from meshwright.capture.stepped import step_op
from meshwright.capture.torch_private import pytree
from meshwright.errors import InputError, quoted
from meshwright.execute.traced import TracedStep


def is_update(kernel: Kernel) -> bool:
    """Whether a kernel is the optimiser's, which updates parameters; other kernels that PyTorch
    calls fused, such as norms, have no learning rate."""
    return op_name(kernel.node).startswith("_fused_") and "lr" in kernel.node.kwargs


def takes_step(kernel: Kernel) -> bool:
    """Whether it is a step of an optimiser's own."""
    return kernel.node.target is step_op


def held_name(step: TracedStep, kernel: Kernel, old: Node) -> str:
    """The name of the state that a kernel reads as an argument; empty: it is no state."""
    version = kernel.reads.get(old.name, -1)
    return step.held.get(step.roots[version], "") if version >= 0 else ""


def updated_name(step: TracedStep, kernel: Kernel) -> str:
    """The name of the parameter that a kernel updates."""
    names = (held_name(step, kernel, old) for old in kernel.node.all_input_nodes)
    return next(name for name in names if name in step.trace.parameter_names)


def updated(step: TracedStep, update: int) -> tuple[str, list[str]]:
    """The name of the parameter that an op updates, and those of the optimiser's tensors of its
    size."""
    kernel = step.ledger.kernels[update]
    names = [held_name(step, kernel, old) for old in kernel.node.all_input_nodes]
    parameters = [name for name in names if name in step.trace.parameter_names]
    if len(parameters) != 1:
        raise InputError(
            f"op {quoted(kernel.node.name)}: must update one parameter to be divided, "
            f"updates {len(parameters)}"
        )
    known, scalars = set(step.trace.state_names), step.trace.scalar_names
    states = [each for each in names if each in known]
    return parameters[0], [each for each in states if each.rpartition(".")[2] not in scalars]


def gradients(step: TracedStep, update: int) -> dict[Node, int]:
    """The arguments of an update that are gradients, with their tensors of the planned graph."""
    kernel = step.ledger.kernels[update]
    return {
        old: step.tensor_of[kernel.reads[old.name]]
        for old in kernel.node.all_input_nodes
        if step.roots[kernel.reads[old.name]] not in step.held
    }


def update_key(step: TracedStep, kernel: Kernel, group_of: Mapping[str, int]) -> Hashable:
    """The same for updates that one call can do; None: it is none, or must be done alone."""
    node = kernel.node
    values = pytree.tree_leaves(node.kwargs)
    is_plain = not any(isinstance(each, Node) for each in values)
    if not is_update(kernel) or not is_plain:
        return None
    lists = [each for each in node.args if isinstance(each, list | tuple)]
    if len(lists) < len(node.args):
        return None
    firsts = [each[0] if each else None for each in lists]
    types = tuple(str(each.meta["val"].dtype) for each in firsts if isinstance(each, Node))
    group = group_of[updated_name(step, kernel)]
    return str(node.target), repr(sorted(node.kwargs.items())), types, group
