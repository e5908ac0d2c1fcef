"""Autocast in a captured step is CUDA's: which kernels read and write which types.

Expected lines follow the op lists of ATen/autocast_mode.h and PyTorch's page on torch.amp.
"""

import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import TestCase

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from meshwright.capture import autocast  # noqa: E402
from meshwright.capture.autocast import cuda_autocast  # noqa: E402
from meshwright.capture.optimiser import Optimiser  # noqa: E402
from meshwright.capture.trace import Trace, trace_step  # noqa: E402
from meshwright.errors import InputError  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SHORT = {BF16: "bf16", FP16: "fp16", FP32: "fp32", torch.float64: "fp64"}
VIEWS = re.compile(
    r"detach|view|t$|transpose|permute|select|unbind|expand|unsqueeze|empty|unsafe_view"
)


def line(op: Any, given: Any, made: Any) -> str:
    """An op as `name(types read) -> types written`."""
    name = re.sub(r"^_", "", str(op).split(".")[-2 if "." in str(op) else 0])
    reads, writes = (
        ", ".join(
            SHORT.get(each.dtype, "int") for each in tree_leaves(value) if isinstance(each, Tensor)
        )
        for value in (given, made)
    )
    return f"{name}({reads}) -> {writes}"


class Recorder(TorchDispatchMode):
    """The kernels that run, in lines."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.lines.append(line(func, (args, kwargs), made))
        return made


def kernels(function: Callable[..., Any], *args: Any, dtype: Any = BF16) -> list[str]:
    """What runs, without views, when a function is called under autocast."""
    with cuda_autocast(), torch.autocast("cpu", dtype=dtype), Recorder() as seen:
        function(*args)
    return [each for each in seen.lines if not VIEWS.match(each.split("(")[0])]


def steps(model: nn.Module, *args: Tensor, dtype: Any = BF16) -> tuple[list[str], list[str]]:
    """Forward and backward of a captured step, without views."""
    trace = traced(model, *args, dtype=dtype)
    lines: list[tuple[int, str]] = []
    for number, node in enumerate(trace.graph.nodes):
        if node.op != "call_function" or number >= trace.num_backward:
            continue
        if "getitem" in str(node.target):
            continue
        given = [each.meta["val"] for each in node.all_input_nodes]
        text = line(node.target, given, node.meta["val"])
        if not VIEWS.match(text.split("(")[0]):
            lines.append((number, text))
    cut = trace.num_forward
    return [text for n, text in lines if n < cut], [text for n, text in lines if n >= cut]


def traced(model: nn.Module, *args: Tensor, dtype: Any = BF16) -> Trace:
    return trace_step(model, args, {}, loss=None, optimizer=Optimiser.SGD, autocast=dtype)


class Made(nn.Module):
    """Modules by name and a function of them and the input."""

    def __init__(self, run: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: Tensor) -> Any:
        return self.run(self, *args)


def test_lists_are_those_that_this_torch_registers_for_cuda() -> None:
    ours = " ".join(
        [autocast.LOWER, autocast.FLOAT32, autocast.FLOAT32_OUT, autocast.WIDEST, autocast.REFUSED]
    ).split()
    theirs = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    cudnn = {"_cudnn_rnn"}  # in builds with CUDA; RECURRENT stands for it
    assert len(ours) == len(set(ours))
    found = {name.removeprefix("aten::") for name in theirs} - cudnn
    named = {name for name in found if "dimname" in name.lower() or "names" in name}  # up to 2.12
    assert found - named <= set(ours)
    later = {"rms_norm"}  # since 2.12
    assert set(ours) - later <= found


X, HALF = torch.ones(4, 4), torch.ones(4, 4, dtype=BF16)
CUBE, IMAGE, HALF_IMAGE = X.expand(4, 4, 4), torch.ones(1, 4, 8, 8), torch.ones(1, 4, 8, 8).to(BF16)
CLASSES = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("function", "args", "kernel"),
    [
        # In autocast's type, whatever comes.
        (torch.mm, (X, X), "mm(bf16, bf16) -> bf16"),
        (torch.matmul, (X, HALF), "mm(bf16, bf16) -> bf16"),
        (lambda a, b: a @ b, (X, X), "mm(bf16, bf16) -> bf16"),
        (Tensor.matmul, (CUBE, CUBE), "bmm(bf16, bf16) -> bf16"),
        (torch.bmm, (CUBE, CUBE), "bmm(bf16, bf16) -> bf16"),
        (torch.addmm, (X, X, X), "addmm(bf16, bf16, bf16) -> bf16"),
        (torch.baddbmm, (CUBE, CUBE, CUBE), "baddbmm(bf16, bf16, bf16) -> bf16"),
        (torch.einsum, ("ij,jk->ik", X, X), "bmm(bf16, bf16) -> bf16"),
        (F.linear, (X, X), "mm(bf16, bf16) -> bf16"),
        (F.linear, (X, X, X[0]), "addmm(bf16, bf16, bf16) -> bf16"),
        (F.conv2d, (IMAGE, IMAGE), "convolution(bf16, bf16) -> bf16"),
        (
            F.conv_transpose2d,
            (IMAGE, IMAGE.mT.reshape(4, 1, 8, 8)),
            "convolution(bf16, bf16) -> bf16",
        ),
        # In float32, and cast to it first.
        (F.layer_norm, (HALF, (4,)), "native_layer_norm(fp32) -> fp32, fp32, fp32"),
        (F.group_norm, (HALF_IMAGE, 2), "native_group_norm(fp32) -> fp32, fp32, fp32"),
        (torch.exp, (HALF,), "exp(fp32) -> fp32"),
        (torch.log, (HALF,), "log(fp32) -> fp32"),
        (torch.rsqrt, (HALF,), "rsqrt(fp32) -> fp32"),
        (torch.reciprocal, (HALF,), "reciprocal(fp32) -> fp32"),
        (torch.pow, (HALF, 3), "pow(fp32) -> fp32"),
        (lambda a: a**3, (HALF,), "pow(fp32) -> fp32"),
        (lambda a: 3**a, (HALF,), "pow(fp32) -> fp32"),
        (F.softplus, (HALF,), "softplus(fp32) -> fp32"),
        (F.mse_loss, (HALF, X), "mse_loss(fp32, fp32) -> fp32"),
        (F.nll_loss, (HALF, CLASSES), "nll_loss_forward(fp32, int) -> fp32, fp32"),
        (F.smooth_l1_loss, (HALF, HALF), "smooth_l1_loss(fp32, fp32) -> fp32"),
        (F.interpolate, (HALF_IMAGE, 16), "upsample_nearest2d(fp32) -> fp32"),
        # To float32: the kernel reads what comes ...
        (torch.sum, (HALF,), "sum(bf16) -> fp32"),
        (Tensor.sum, (HALF, 1), "sum(bf16) -> fp32"),
        (torch.prod, (HALF,), "prod(bf16) -> fp32"),
        (torch.cumsum, (HALF, 0), "cumsum(bf16) -> fp32"),
        (torch.linalg.vector_norm, (HALF,), "linalg_vector_norm(bf16) -> fp32"),
        (torch.norm, (HALF,), "linalg_vector_norm(bf16) -> fp32"),
        # ... unless torch casts by itself; ...
        (torch.softmax, (HALF, 1), "softmax(fp32) -> fp32"),
        (Tensor.log_softmax, (HALF, 1), "log_softmax(fp32) -> fp32"),
        # ... a type that is asked for is kept.
        (lambda a: a.sum(dtype=BF16), (HALF,), "sum(bf16) -> bf16"),
        (lambda a: a.softmax(1, BF16), (HALF,), "softmax(bf16) -> bf16"),
        # The widest.
        (torch.addcmul, (X, HALF, HALF), "addcmul(fp32, fp32, fp32) -> fp32"),
        (torch.addcmul, (HALF, HALF, HALF), "addcmul(bf16, bf16, bf16) -> bf16"),
        (torch.atan2, (HALF, X), "atan2(fp32, fp32) -> fp32"),
        (torch.dot, (HALF[0], X[0]), "dot(fp32, fp32) -> fp32"),
        (torch.scatter_add, (X, 0, CLASSES[None], HALF), "scatter_add(fp32, int, fp32) -> fp32"),
        (torch.tensordot, (HALF, X, 1), "mm(fp32, fp32) -> fp32"),
        # By torch's own promotion.
        (torch.add, (HALF, X), "add(bf16, fp32) -> fp32"),
        (torch.cat, ([HALF, X],), "cat(bf16, fp32) -> fp32"),
        (torch.stack, ([HALF, X],), "stack(bf16, fp32) -> fp32"),
        # Untouched.
        (torch.relu, (HALF,), "relu(bf16) -> bf16"),
        (F.gelu, (HALF,), "gelu(bf16) -> bf16"),
        (torch.mean, (HALF,), "mean(bf16) -> bf16"),
        (torch.mm, (X.double(), X.double()), "mm(fp64, fp64) -> fp64"),
        # Only in the CPU's lists.
        (F.pad, (HALF, (1, 1), "reflect"), "reflection_pad1d(bf16) -> bf16"),
    ],
)
def test_an_op_runs_in_the_types_that_it_has_on_cuda(
    function: Callable[..., Any], args: tuple[Any, ...], kernel: str
) -> None:
    found = kernels(function, *args)
    assert kernel in found
    assert {each.split("(")[0] for each in found} <= {kernel.split("(")[0], "to_copy", "clone"}


def cuda_cases(lists: Any) -> Iterator[tuple[str, Any, Any, dict[str, Any], Any]]:
    """The ops that torch's own tests of CUDA autocast try, and the types they expect."""
    for owner, cases, expected in (
        (torch, lists.torch_fp16, FP16),
        (torch._C._nn, lists.nn_fp16, FP16),
        (torch._C._linalg, lists.linalg_fp16, FP16),
        (Tensor, lists.methods_fp16, FP16),
        (torch, lists.torch_fp32, FP32),
        (torch._C._nn, lists.nn_fp32, FP32),
        (Tensor, lists.methods_fp32, FP32),
        (torch, lists.torch_need_autocast_promote, FP32),
    ):
        for name, args, *rest in cases:
            if name.startswith("cudnn") or isinstance(args, str):  # one cannot run
                continue
            kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
            yield name, getattr(owner, name), args, kwargs, expected


@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
def test_types_are_those_that_torch_tests_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    # The lists need two names of a module that needs a package which we do not install.
    common = ModuleType("torch.testing._internal.common_utils")
    vars(common).update(TEST_WITH_ROCM=False, TestCase=TestCase)
    monkeypatch.setitem(sys.modules, common.__name__, common)
    lists = importlib.import_module("torch.testing._internal.autocast_test_lists")
    tried = 0
    for name, function, args, kwargs, expected in cuda_cases(lists.AutocastTestLists("cpu")):
        with cuda_autocast(), torch.autocast("cuda", dtype=FP16), FakeTensorMode() as mode:
            given = tree_map_only(Tensor, mode.from_tensor, args)
            made = [a for a in tree_leaves(function(*given, **kwargs)) if isinstance(a, Tensor)]
        assert {each.dtype for each in made} == {expected}, name
        tried += 1
    assert tried > 80


def test_two_layers_and_a_loss_are_these_ops() -> None:
    model = Made(
        lambda m, x, y: F.cross_entropy(m.b(torch.relu(m.a(x))), y),
        a=nn.Linear(8, 16),
        b=nn.Linear(16, 8),
    )
    forward, backward = steps(model, torch.ones(4, 8), CLASSES)
    cast, back = "to_copy(fp32) -> bf16", "to_copy(bf16) -> fp32"
    assert forward == [
        *[cast] * 3,  # input, weight, bias
        "addmm(bf16, bf16, bf16) -> bf16",
        "relu(bf16) -> bf16",
        *[cast] * 2,  # weight, bias
        "addmm(bf16, bf16, bf16) -> bf16",
        # cross_entropy asks log_softmax for the logits' type, and autocast keeps what is asked for
        # (cross_entropy_loss in native/LossNLL.cpp); only nll_loss is in float32.
        "log_softmax(bf16) -> bf16",
        back,
        "nll_loss_forward(fp32, int) -> fp32, fp32",
    ]
    assert backward == [
        "ones_like(fp32) -> fp32",
        "nll_loss_backward(fp32, fp32, int, fp32) -> fp32",
        cast,
        "log_softmax_backward_data(bf16, bf16) -> bf16",
        "mm(bf16, bf16) -> bf16",  # of the input
        "mm(bf16, bf16) -> bf16",  # of the weight
        "sum(bf16) -> bf16",  # of the bias: autocast is off in backward
        *[back] * 2,
        "threshold_backward(bf16, bf16) -> bf16",
        "mm(bf16, bf16) -> bf16",  # of the weight; the input needs none
        "sum(bf16) -> bf16",
        *[back] * 2,
    ]


def block(model: nn.Module, x: Tensor) -> Any:
    heads = model.get_submodule("qkv")(model.get_submodule("norm")(x)).view(2, 4, 3, 2, 4)
    query, key, value = heads.transpose(1, 3).unbind(2)
    made = F.scaled_dot_product_attention(query, key, value, attn_mask=torch.zeros(4, 4))
    return x + model.get_submodule("out")(made.transpose(1, 2).reshape(2, 4, 8))


def transformer(run: Callable[[nn.Module, Tensor], Any]) -> nn.Module:
    return Made(run, norm=nn.LayerNorm(8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))


def test_a_transformer_has_half_products_and_attention_and_a_float32_residual() -> None:
    model = transformer(lambda m, x: (block(m, x).softmax(-1) ** 3).sum())
    forward, backward = steps(model, torch.ones(2, 4, 8))
    computed = [each for each in forward if not each.startswith(("to_copy", "zeros"))]
    assert computed == [
        "native_layer_norm(fp32, fp32, fp32) -> fp32, fp32, fp32",
        "addmm(bf16, bf16, bf16) -> bf16",
        "attention(bf16, bf16, bf16, bf16) -> bf16, fp32",
        "addmm(bf16, bf16, bf16) -> bf16",
        "add(fp32, bf16) -> fp32",
        "softmax(fp32) -> fp32",
        "pow(fp32) -> fp32",
        "sum(fp32) -> fp32",
    ]
    # Two weights, two biases, the norm's result and the mask; attention's result is half already.
    assert forward.count("to_copy(fp32) -> bf16") == 6
    assert (
        "attention_backward(bf16, bf16, bf16, bf16, bf16, fp32, bf16) -> bf16, bf16, bf16"
        in backward
    )
    assert {each for each in backward if each.startswith("mm")} == {"mm(bf16, bf16) -> bf16"}


def test_a_convnet_has_half_convolutions_and_batch_norm_with_float32_weights() -> None:
    model = Made(
        lambda m, x: m.pool(m.norm(m.conv(x)).relu()).sum(),
        conv=nn.Conv2d(3, 8, 3, padding="same"),
        norm=nn.BatchNorm2d(8),
        pool=nn.MaxPool2d(2),
    )
    forward, backward = steps(model, torch.ones(4, 3, 8, 8))
    text = "\n".join(forward)
    assert "convolution(bf16, bf16, bf16) -> bf16" in text
    assert "native_batch_norm(bf16, fp32, fp32, fp32, fp32) -> bf16" in text
    assert (
        "relu(bf16) -> bf16\nmax_pool2d_with_indices(bf16) -> bf16, int\nsum(bf16) -> fp32" in text
    )
    norm, conv = (next(a for a in backward if a.startswith(b)) for b in ("native_batch", "conv"))
    assert norm.endswith("-> bf16, fp32, fp32")
    assert conv == "convolution_backward(bf16, bf16, bf16) -> bf16, bf16"


def test_a_recurrent_layer_runs_in_half_as_cudnn_does() -> None:
    model = Made(lambda m, x: m.layer(x)[0].sum(), layer=nn.GRU(8, 8))
    forward, _ = steps(model, torch.ones(3, 4, 8))
    used = {each for each in forward if not each.startswith(("to_copy(fp32)", "zeros", "sum"))}
    assert not any("fp32" in each for each in used)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_a_weight_is_cast_once_and_its_gradient_arrives_in_float32(dtype: Any) -> None:
    model = Made(lambda m, x: m.a(m.a(m.a(x))).sum(), a=nn.Linear(8, 8, bias=False))
    forward, backward = steps(model, torch.ones(4, 8), dtype=dtype)
    half = SHORT[dtype]
    assert forward.count(f"to_copy(fp32) -> {half}") == 2  # the input and the weight
    # The uses' gradients are added in half, then cast once.
    assert backward.count(f"add({half}, {half}) -> {half}") == 2
    assert backward.count(f"to_copy({half}) -> fp32") == 1
    trace = traced(model, torch.ones(4, 8), dtype=dtype)
    (output,) = (node for node in trace.graph.nodes if node.op == "output")
    assert [each.meta["val"].dtype for each in output.args[0]] == [FP32, FP32]


def test_a_weight_first_used_without_gradient_still_gets_one() -> None:
    def run(model: nn.Module, x: Tensor) -> Any:
        layer = model.get_submodule("a")
        with torch.no_grad():
            x = layer(x)
        return layer(x).sum()

    model = Made(run, a=nn.Linear(8, 8, bias=False))
    forward, _ = steps(model, torch.ones(4, 8))
    assert forward.count("to_copy(fp32) -> bf16") == 2
    assert traced(model, torch.ones(4, 8)).gradient_names == ("a.weight",)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_disabled_region_inside_casts_nothing(device: str) -> None:
    def run(model: nn.Module, x: Tensor) -> Any:
        first, second = model.get_submodule("a"), model.get_submodule("b")
        x = first(x)
        assert torch.is_autocast_enabled("cpu")
        with torch.autocast(device, enabled=False):
            assert not torch.is_autocast_enabled("cpu")
            x = second(x.float())
        return first(x).sum()

    model = Made(run, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    products = [each for each in steps(model, torch.ones(4, 8))[0] if each.startswith("addmm")]
    half, full = "addmm(bf16, bf16, bf16) -> bf16", "addmm(fp32, fp32, fp32) -> fp32"
    assert products == [half, full, half]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_region_that_the_model_opens_is_cudas(device: str) -> None:
    def run(model: nn.Module, x: Tensor) -> Any:
        with torch.autocast(device):  # which is float16 there
            return model.get_submodule("a")(x).softmax(-1).sum()

    forward, _ = steps(Made(run, a=nn.Linear(8, 8)), torch.ones(4, 8), dtype=None)
    assert forward[3:] == [
        "addmm(fp16, fp16, fp16) -> fp16",
        "to_copy(fp16) -> fp32",
        "softmax(fp32) -> fp32",
        "sum(fp32) -> fp32",
    ]


def test_a_recomputation_runs_under_autocast_and_backward_does_not() -> None:
    def again(model: nn.Module, x: Tensor) -> Any:
        return checkpoint(block, model, x, use_reentrant=False).exp().sum()

    plain = steps(transformer(lambda m, x: block(m, x).exp().sum()), torch.ones(2, 4, 8))
    found = steps(transformer(again), torch.ones(2, 4, 8))
    assert found[0] == plain[0]
    extra = list(found[1])
    for each in plain[1]:
        extra.remove(each)
    # The block up to the last tensor that backward reads, an input of its second product; with the
    # weights' casts, because what forward kept of them went when its region ended.
    again_until = [n for n, each in enumerate(plain[0]) if each.startswith("addmm")][1]
    assert Counter(extra) == Counter(plain[0][:again_until])
    assert extra.count("to_copy(fp32) -> bf16") == 6
    assert [each for each in found[1] if each.startswith("sum")] == ["sum(bf16) -> bf16"] * 2


def test_what_cuda_refuses_is_refused_with_its_line() -> None:
    model = Made(
        lambda m, x: F.binary_cross_entropy(m.a(x).sigmoid(), torch.ones(4, 1)), a=nn.Linear(8, 1)
    )
    with pytest.raises(InputError, match="use binary_cross_entropy_with_logits"):
        steps(model, torch.ones(4, 8))


def test_autocast_on_the_cpu_is_its_own_again_afterwards() -> None:
    before = torch.get_autocast_dtype("cpu"), torch.autocast.__init__, torch.clear_autocast_cache
    assert kernels(torch.softmax, HALF, 1)[-1] == "softmax(fp32) -> fp32"
    with pytest.raises(ZeroDivisionError), cuda_autocast():
        raise ZeroDivisionError
    after = torch.get_autocast_dtype("cpu"), torch.autocast.__init__, torch.clear_autocast_cache
    assert before == after
    with torch.autocast("cpu", dtype=BF16):
        assert HALF.softmax(1).dtype is BF16
        assert F.pad(HALF, (1, 1), "reflect").dtype is FP32
        assert (X @ X).dtype is BF16
