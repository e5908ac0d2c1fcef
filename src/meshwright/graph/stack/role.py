"""What a team does with every op of a layer: forward by `flow`, then backward and updates.

A gradient is cut where what it is the gradient of is cut; the gradient of a weight where the weight
is.
"""

from collections.abc import Set

import numpy as np

from meshwright.graph.graph import Bools, Graph, Ints, Phase, Split
from meshwright.graph.stack.flow import FeatureFlow, FeatureState
from meshwright.graph.stack.product import is_expert, is_product
from meshwright.graph.stack.stack import PRODUCT_SIZES, Codes, ProductCut, Role, Roles, Template


def find_roles(layer: Template, flow: FeatureFlow) -> Roles:
    """Roles of all ops and tensors of a layer."""
    graph = layer.graph
    role = flow.role.copy()
    products = is_product(graph)
    is_cut = flow.state == FeatureState.CUT
    is_weight = graph.tensor_partial & (graph.phase[graph.tensor_source] == Phase.BACKWARD)
    for op in np.flatnonzero(graph.phase == Phase.BACKWARD).tolist():
        if op >= layer.num_entering:
            _visit_backward(graph, flow, products, op, role, is_cut)
    for table in sorted(flow.tables):
        _cut_table(graph, table, role, is_cut, is_weight)
    experts = role[graph.tensor_source] == Role.EXPERT
    for op in np.flatnonzero(graph.phase == Phase.UPDATE).tolist():
        gradients = graph.inputs[op]
        if is_cut[gradients].any():
            role[op] = Role.EXPERT if experts[gradients].any() else Role.INNER
            is_cut[graph.outputs[op]] = True  # a sum of the gradients of copies
    rows = _made(graph, flow.rows)
    grows = graph.tensor_bytes > graph.fixed_tensor_bytes
    return Roles(
        role=role,
        tensor_cut=_tensor_cut(graph, flow, role, is_cut),
        row_cut=_row_cut(graph, role),
        is_cut=is_cut,
        has_rows=grows & ~is_weight,
        is_expert=experts,
        is_weight=is_weight,
        reduced=np.concatenate((rows, _made(graph, flow.tables))),
        spread=_read(graph, flow, flow.columns),
        dispatched=_dispatched(graph, flow),
    )


def _visit_backward(
    graph: Graph, flow: FeatureFlow, products: Bools, op: int, role: Codes, is_cut: Bools
) -> None:
    """The role of one op of backward, whose inputs are known, and what it gives."""
    partner = int(graph.partner[op])
    reads_cut = bool(is_cut[graph.inputs[op]].any())
    outputs = graph.outputs[op]
    if partner < 0:
        role[op], is_cut[outputs] = (Role.INNER if reads_cut else Role.WHOLE), reads_cut
        return
    weighs = graph.split[op] == Split.SUM
    multiplies = products[op] or graph.product_count[op] > 0
    if partner in flow.columns:
        gives_cut = reads_cut and (weighs or not multiplies)
    elif partner in flow.rows:
        gives_cut = reads_cut or (multiplies and not weighs)
    else:
        gives_cut = partner not in flow.tables and (role[partner] != Role.WHOLE or reads_cut)
    works_cut = gives_cut or (partner in flow.columns and reads_cut)
    role[op] = (role[partner] or Role.INNER) if works_cut else Role.WHOLE
    is_cut[outputs] = gives_cut
    if partner in flow.shared:  # of what all members have, each one's gradient is a term
        is_cut[outputs[graph.tensor_partial[outputs]]] = False
    if partner in flow.losses and not graph.inputs[op].size:
        is_cut[outputs] = False


def _cut_table(graph: Graph, table: int, role: Codes, is_cut: Bools, is_weight: Bools) -> None:
    """All that makes the table's gradient; a tied head's share of it is added there."""
    mine = is_weight & (graph.tensor_bytes == graph.parameter_bytes[table])
    is_cut[mine] = True
    role[graph.tensor_source[mine]] = Role.INNER


def _made(graph: Graph, ops: Set[int]) -> Ints:
    made = [graph.outputs[op] for op in sorted(ops)]
    return np.concatenate(made).astype(np.int32) if made else np.empty(0, dtype=np.int32)


def _read(graph: Graph, flow: FeatureFlow, ops: Set[int]) -> Ints:
    """Tensors with all features that those ops read; small ones only steer."""
    found: set[int] = set()
    for op in ops:
        inputs = graph.inputs[op]
        inputs = inputs[flow.state[inputs] == FeatureState.STREAM]
        largest = graph.tensor_bytes[inputs].max(initial=0.0)
        found.update(inputs[graph.tensor_bytes[inputs] * 16 > largest].tolist())
    return np.array(sorted(found), dtype=np.int32)


def _dispatched(graph: Graph, flow: FeatureFlow) -> Ints:
    """Tokens on their way to experts, and what experts made of them."""
    experts = is_expert(graph)
    there = _read(graph, flow, {op for op in flow.columns if experts[op]})
    back = _made(graph, {op for op in flow.rows if experts[op]})
    return np.concatenate((there, back))


def _tensor_cut(graph: Graph, flow: FeatureFlow, role: Codes, is_cut: Bools) -> Codes:
    cut = np.zeros(graph.num_ops, dtype=np.int8)
    products = is_product(graph) & (role != Role.WHOLE)
    for op in np.flatnonzero((graph.product_count > 0) & (role != Role.WHOLE)).tolist():
        partner = int(graph.partner[op]) if graph.phase[op] == Phase.BACKWARD else op
        if role[op] == Role.ATTENTION:
            cut[op] = ProductCut.COUNT
        elif not products[op]:  # a sum over rows has a column a feature
            cut[op] = ProductCut.COLUMNS if is_cut[graph.outputs[op]].all() else ProductCut.NONE
        elif op == partner:
            cut[op] = ProductCut.COLUMNS if op in flow.columns else ProductCut.DEPTH
        elif graph.split[op] == Split.SUM:
            cut[op] = _weight_cut(graph, op, partner, partner in flow.columns)
        else:
            cut[op] = ProductCut.DEPTH if partner in flow.columns else ProductCut.COLUMNS
    return cut


def _weight_cut(graph: Graph, op: int, partner: int, is_column: bool) -> ProductCut:
    """The gradient of a weight is cut where the weight is; it may be laid out either way."""
    size = graph.product_columns[partner] if is_column else graph.product_depth[partner]
    return ProductCut.COLUMNS if graph.product_columns[op] == size else ProductCut.ROWS


def _row_cut(graph: Graph, role: Codes) -> Codes:
    """The size that grows with the batch; of attention the queries."""
    cut = np.zeros(graph.num_ops, dtype=np.int8)
    for code, name in reversed(PRODUCT_SIZES.items()):
        size, fixed = getattr(graph, name), getattr(graph, f"fixed_{name}")
        cut[size > fixed] = code
    cut[(role == Role.ATTENTION) & (graph.product_count > 0)] = ProductCut.ROWS
    return cut
