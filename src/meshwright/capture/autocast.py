"""Gives autocast on the fake CPU the op lists that it has on a CUDA device.

A step is traced on CPU tensors, but the plan is for accelerators, and the two devices' autocast
differ: only CUDA's runs norms, softmax, powers and sums in float32, only the CPU's touches fft,
padding and three-dimensional pooling. So while a step is traced, the dispatcher's kernels for CPU
autocast are replaced by CUDA's policy. Kernels, not a torch-function mode, because the dispatcher
also sees what torch's own functions call inside (`multi_head_attention_forward`, `cross_entropy`),
and because regions, nested and disabled ones, backward and recomputation then need no code: torch
switches the dispatch key.

The lists are those of ATen/autocast_mode.h in torch 2.13; of these names, those count that the
installed torch registers for CUDA, and a test looks for others.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.attention import attention
from meshwright.capture.eager import replaced
from meshwright.capture.torch_private import find_registrations, pytree, scoped_library, without_key

_KEY = "AutocastCPU"

LOWER = """
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
    cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear
    addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell
    lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
    scaled_dot_product_attention
"""
"""Ops that run in autocast's type."""

RECURRENT = """
    lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input
    rnn_relu.data
"""
"""As those above. On CUDA each is one cuDNN op, which has its own rule (cudnn/AutocastRNN.cpp)."""

FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
    group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
"""
"""Ops whose inputs are cast to float32 first."""

FLOAT32_OUT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList norm.Scalar
    norm.ScalarOpt_dim
"""
"""Ops that read their input as it comes and are asked for a float32 result, unless the caller asks
for another type. (For `norm` that is another overload, which torch picks by itself.)"""

WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""
"""Ops that run in float32 if an input is float32, else in autocast's type. Arithmetic, `cat` and
`stack` are in no list: they promote by themselves."""

REFUSED = "binary_cross_entropy"


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """While this holds, `torch.autocast("cpu")` and `("cuda")` both mean CUDA's, on the CPU.

    For the whole process: another thread that runs under CPU autocast meanwhile is affected, too.
    """
    casts = _Casts()
    clear, build = torch.clear_autocast_cache, torch.autocast.__init__

    def clear_both() -> None:
        casts.kept.clear()
        clear()

    def build_for_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        build(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    with (
        _registered(casts),
        replaced(torch, "clear_autocast_cache", clear_both),
        replaced(torch.autocast, "__init__", build_for_cpu),
        _defaults(torch.get_autocast_dtype("cuda")),
    ):
        yield


class _Casts:
    """Casts of tensors; those of weights are kept until the outermost autocast region ends."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
        """By its identity, which holding it keeps its own, and type: the weight, and its cast."""

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Every tensor in a tree of arguments in this type, those apart that autocast ignores."""
        return pytree.tree_map(lambda leaf: self._cast_leaf(leaf, dtype), value)

    def _cast_leaf(self, leaf: Any, dtype: torch.dtype) -> Any:
        if not _is_eligible(leaf) or leaf.dtype is dtype:
            return leaf
        if not _is_kept(leaf, dtype):
            return leaf.to(dtype)
        if (id(leaf), dtype) not in self.kept:
            with torch.enable_grad():  # the cast serves readers that need its gradient, too
                self.kept[id(leaf), dtype] = leaf, leaf.to(dtype)
        return self.kept[id(leaf), dtype][1]


def _is_eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64
    )


def _is_kept(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether autocast takes it for a weight (`cached_cast` in ATen/autocast_mode.cpp)."""
    return (
        dtype is torch.get_autocast_dtype("cpu")
        and tensor.dtype is torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
    )


Kernel = Callable[..., Any]


def _cast(choose: Callable[[Any], torch.dtype], op: Kernel, casts: _Casts) -> Kernel:
    """Run an op in the type that is chosen by what it is given."""

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = casts.cast((args, kwargs), choose((args, kwargs)))
        return op(*args, **kwargs)

    return run


def _lower(_: Any) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _widest(given: Any) -> torch.dtype:
    eligible = (each for each in pytree.tree_leaves(given) if _is_eligible(each))
    return torch.float32 if any(each.dtype is torch.float32 for each in eligible) else _lower(given)


def _float32_out(op: Kernel, casts: _Casts) -> Kernel:  # noqa: ARG001 - nothing is cast
    def run(*args: Any, **kwargs: Any) -> Any:
        # softmax takes the type by position, too.
        is_chosen = "dtype" in kwargs or any(isinstance(each, torch.dtype) for each in args)
        if not is_chosen and _is_eligible(args[0]):
            kwargs["dtype"] = torch.float32
        return op(*args, **kwargs)

    return run


def _refused(op: Kernel, casts: _Casts) -> Kernel:  # noqa: ARG001 - nothing is run
    def run(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{op} is unsafe under autocast, use binary_cross_entropy_with_logits")

    return run


_POLICIES = (
    (functools.partial(_cast, _lower), LOWER + RECURRENT),
    (functools.partial(_cast, lambda _: torch.float32), FLOAT32),
    (_float32_out, FLOAT32_OUT),
    (functools.partial(_cast, _widest), WIDEST),
    (_refused, REFUSED),
)


@contextlib.contextmanager
def _registered(casts: _Casts) -> Iterator[None]:
    """CUDA's policy as the kernels of CPU autocast; the CPU's own are back afterwards."""
    with (
        scoped_library("aten", "IMPL") as aten,
        scoped_library("meshwright", "IMPL") as own,
    ):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            _register(aten, casts)
        own.impl("attention", _outside(_cast(_lower, attention._opoverload, casts)), _KEY)
        yield


def _register(aten: Any, casts: _Casts) -> None:
    on_cuda = {*_registered_names("AutocastCUDA"), *RECURRENT.split()}
    others = set(_registered_names(_KEY))
    for policy, names in _POLICIES:
        for name in on_cuda.intersection(names.split()):
            aten.impl(name, _outside(policy(_aten(name), casts)), _KEY)
            others.discard(name)
    for name in others:
        aten.impl(name, torch.library.fallthrough_kernel, _KEY)


@functools.cache
def _registered_names(key: str) -> frozenset[str]:
    """The ops that torch itself has kernels of a dispatch key for."""
    known = find_registrations(key)
    return frozenset(name.removeprefix("aten::") for name in known if name.startswith("aten::"))


def _aten(name: str) -> Kernel:
    packet, _, overload = name.partition(".")
    if packet == "norm":
        return torch.ops.aten.norm  # the overload is another one once there is a type
    found: Kernel = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


def _outside(kernel: Kernel) -> Kernel:
    """What a kernel calls is not cast again."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with without_key("AutocastCPU"):
            return kernel(*args, **kwargs)

    return run


@contextlib.contextmanager
def _defaults(dtype: torch.dtype) -> Iterator[None]:
    """What regions get that do not say: CUDA's type (float16), and weights cast once.

    `make_fx` forbids the latter because casts that torch keeps can outlive a trace; ours cannot.
    """
    found = torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    torch.set_autocast_dtype("cpu", dtype)
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", found[0])
        torch.set_autocast_cache_enabled(found[1])
