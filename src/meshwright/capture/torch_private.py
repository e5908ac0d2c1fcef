"""The parts of PyTorch that it promises to nobody, in one place but for its compiler's, which
`meshwright.execute.region.inductor` takes: what a new release may change or take away.

`meshwright.source.need_torch` looks at the release that is installed before this is imported.
"""

import sys
from copy import copy

import torch
from torch import nn

from meshwright.argument import need_type
from meshwright.errors import InputError

try:
    import torch.utils._pytree
    from torch._ops import OpOverload as OpOverload
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException as DataDependentOutputException,
    )
    from torch._subclasses.fake_tensor import (
        DynamicOutputShapeException as DynamicOutputShapeException,
    )
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.fx.experimental.proxy_tensor import snapshot_fake as snapshot_fake
    from torch.nn.utils.stateless import _reparametrize_module
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes

    pytree = torch.utils._pytree
    reparametrized, without_modes = _reparametrize_module, _disable_current_modes
    DispatchKey = torch._C.DispatchKey
    scoped_library = torch.library._scoped_library
    find_registrations = torch._C._dispatch_get_registrations_for_dispatch_key
    without_torch_function = torch._C.DisableTorchFunction
    forbid_data = torch._C._set_throw_on_mutable_data_ptr
    make_subclass = torch.Tensor._make_subclass
    without_dispatch = torch._C._DisableTorchDispatch
    swap_tensor_impl = torch._C._swap_tensor_impl
    negated_view = torch._neg_view
    sequence_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
    choose_attention = torch._fused_sdp_choice
    update_sgd = torch._fused_sgd_
    update_adam, update_adamw = torch._fused_adam_, torch._fused_adamw_
    add_each, multiply_each = torch._foreach_add_, torch._foreach_mul_
    norm_each, copy_each = torch._foreach_norm, torch._foreach_copy_
    spin = torch.cuda._sleep
    """Keeps a GPU at work for so many of its cycles."""
except (ImportError, AttributeError) as error:
    raise InputError(
        f"torch {torch.__version__}: must have the parts that Meshwright takes, but {error}; "
        f"install one of the releases that pyproject.toml names"
    ) from error


def without_key(name: str) -> torch._C._ExcludeDispatchKeyGuard:
    """Within this, kernels of a dispatch key are passed over."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(DispatchKey, name)))


def clear_workspaces() -> None:
    """Give back the memory that cuBLAS works in; builds without CUDA have no such call."""
    torch._C._cuda_clearCublasWorkspaces()


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, where this is what it returned, here or inside.

    The user's module is left as it is: around what was compiled stand copies of its modules, with
    the same parameters and buffers.
    """
    need_type(model, nn.Module, "model", "a torch.nn.Module")
    # Whoever has such a module has imported its class, which would take seconds here.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return model if compiler is None else _unwrapped(model, compiler.OptimizedModule, {})


def _unwrapped(
    model: nn.Module, wrapper: type[nn.Module], known: dict[nn.Module, nn.Module]
) -> nn.Module:
    """`known` has what modules became that were met before, which may be under two names."""
    if model not in known:
        inner = model._orig_mod if isinstance(model, wrapper) else model
        assert isinstance(inner, nn.Module)
        children = {
            name: None if each is None else _unwrapped(each, wrapper, known)
            for name, each in inner._modules.items()
        }
        known[model] = inner
        if any(each is not inner._modules[name] for name, each in children.items()):
            known[model] = copy(inner)
            known[model]._modules = children
    return known[model]
