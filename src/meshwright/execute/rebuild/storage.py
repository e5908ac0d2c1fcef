"""Finds which nodes of a trace share a storage: a view lies in the storage of what it views."""

import operator

import torch
from torch.fx import Node

from meshwright.capture.ledger import storage_of
from meshwright.capture.torch_private import pytree


def storages_of(node: Node) -> set[int]:
    """The storages of the tensors that a node gives."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return {storage_of(each) for each in leaves if isinstance(each, torch.Tensor)}


def viewed_node(node: Node) -> Node | None:
    """The argument in whose storage a node's value lies.

    None if the value has a storage of its own. Each of several results of a kernel has its own.
    """
    if node.op != "call_function":
        return None
    storages = storages_of(node)
    found = next((each for each in node.all_input_nodes if storages & storages_of(each)), None)
    if node.target is operator.getitem and found is not None and viewed_node(found) is None:
        return None
    return found


def storage_start(node: Node) -> Node:
    """The node whose call or placeholder begins the storage that a node's value lies in."""
    source = viewed_node(node)
    return node if source is None else storage_start(source)
