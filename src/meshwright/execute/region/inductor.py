"""Compiles recipes with TorchInductor. The private parts of PyTorch that it takes are all here."""

from collections.abc import Callable

import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from meshwright.execute.region.attention import choose_attention
from meshwright.execute.region.padding import Padder
from meshwright.execute.region.recipe import RegionFunction, RegionRecipe, run_recipe

_aten = torch.ops.aten


class Inductor:
    """Compiles recipes for a device, each once."""

    def __init__(self, device: torch.device, show: Callable[[str], None]) -> None:
        """`show` is told what is compiled, and what cannot be."""
        self.device, self.show = device, show
        self.functions: dict[RegionRecipe, RegionFunction | None] = {}

    def __call__(self, recipe: RegionRecipe) -> RegionFunction | None:
        """A function of the recipe's inputs, in kernels of the device's own; None: it cannot."""
        if recipe not in self.functions:
            self.show(f"compiling region {len(self.functions) + 1}: {len(recipe.steps):,} ops")
            try:
                self.functions[recipe] = self._compile(recipe)
            except Exception as error:  # a compiler may fail by any of its own
                self.show(f"not compiled, runs op by op: {_describe(recipe, error)}")
                self.functions[recipe] = None
        return self.functions[recipe]

    def _compile(self, recipe: RegionRecipe) -> RegionFunction:
        mode = FakeTensorMode(shape_env=ShapeEnv())
        module, given = trace_recipe(recipe, self.device, mode)
        known = {name: value for name, value in _OPTIONS.items() if name in config._config}
        # In no tracing context, Inductor neither looks into its cache nor adds to it.
        with torch.no_grad(), config.patch(known), tracing(TracingContext(mode)):
            compiled: RegionFunction = compile_fx_inner(module, given, is_inference=True)
        return compiled


_OPTIONS = {
    # Regions hand tensors on in the layouts of the traced step.
    "layout_optimization": False,
    # With it, torch 2.11 on an H200 returned a result of shape (768,) where (1, 768) belongs: of a
    # layer norm's backward with its forward computed again, 8192 rows of 768 in bf16.
    "triton.mix_order_reduction": False,
}


def _describe(recipe: RegionRecipe, error: Exception) -> str:
    first, last = (str(step.call.target) for step in (recipe.steps[0], recipe.steps[-1]))
    reason = str(error).strip().partition("\n")[0]
    return f"{len(recipe.steps):,} ops from {first} to {last}: {type(error).__name__}: {reason}"


def trace_recipe(
    recipe: RegionRecipe, device: torch.device, mode: FakeTensorMode
) -> tuple[GraphModule, list[torch.Tensor]]:
    """The recipe as ATen ops that write to nothing but, at the end, to its inputs; and inputs that
    have no values."""
    recipe = choose_attention(recipe, device)

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return run_recipe(recipe, tensors, device)

    table = dict(select_decomp_table())
    if device.type == "cuda":
        table |= Padder().table
    with mode, torch.no_grad():
        given = [layout.empty(device) for layout in recipe.inputs]
        traced = make_fx(functionalize(run, remove="mutations"), table)
        module = traced(*given)
    for node in list(module.graph.nodes):
        _write_out_alpha(module, node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module, given


def _write_out_alpha(module: GraphModule, node: Node) -> None:
    """Multiply first where an addition does: Inductor of torch 2.13 makes `addmm` of an addition
    of a product, and drops its factor."""
    if node.target not in (_aten.add.Tensor, _aten.sub.Tensor) or "alpha" not in node.kwargs:
        return
    with module.graph.inserting_before(node):
        scaled = module.graph.call_function(_aten.mul.Tensor, (node.args[1], node.kwargs["alpha"]))
    node.args, node.kwargs = (node.args[0], scaled), {}
