"""One kernel call as text: what it computes on which shapes, and nothing of which model it is from.

The text is the key under which a profile keeps the call's time, and enough to run it again.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.attention_kernel import stores_scores

_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "_grouped_mm"}
_CONVOLUTIONS = {"convolution", "convolution_backward"}
_ATTENTION = {"attention": 0, "attention_backward": 1}
"""Where the query stands among the arguments."""


def describe_call(node: Node) -> str:
    """The op, its shapes, strides, types and plain arguments as one canonical line of JSON."""
    document: dict[str, Any] = {
        "op": str(node.target),
        "args": [_encode(each) for each in node.args],
        "kwargs": {name: _encode(each) for name, each in sorted(node.kwargs.items())},
    }
    if uses_tf32(node):
        document["tf32"] = True
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def uses_tf32(node: Node) -> bool:
    """Whether fp32 matrices are multiplied in TF32, as torch's settings say: by default
    convolutions are, and other products are not.

    The settings of the process that captures stand for those of the process that trains.
    """
    name = str(node.target).split(".")[1] if "." in str(node.target) else ""
    is_stored = name in _ATTENTION and stores_scores(
        *(each.meta["val"] for each in node.args[_ATTENTION[name] :][:2])  # type: ignore[union-attr]
    )
    if name in _PRODUCTS or is_stored:
        allowed = torch.backends.cuda.matmul.allow_tf32
    elif name in _CONVOLUTIONS:
        allowed = torch.backends.cudnn.allow_tf32
    else:
        return False
    values = (each.meta.get("val") for each in node.all_input_nodes)
    return bool(allowed) and all(
        value.dtype is torch.float32
        for value in values
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    )


@contextlib.contextmanager
def in_tf32(is_tf32: bool | None) -> Iterator[None]:
    """While this holds, torch multiplies fp32 matrices in TF32, convolutions included, or in fp32;
    None: as its settings are."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    if is_tf32 is not None:
        matmul.allow_tf32 = cudnn.allow_tf32 = is_tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _encode(value: Any) -> Any:
    if isinstance(value, Node):
        return _encode(value.meta["val"])
    if isinstance(value, torch.Tensor):
        return {
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "dtype": _name(value.dtype),
        }
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": _name(value)}
    if isinstance(value, torch.device):
        return {"device": True}
    if isinstance(value, list | tuple):
        return [_encode(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"other": str(value)}


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def rebuild_call(text: str, device: torch.device) -> tuple[Any, list[Any], dict[str, Any]]:
    """The op and arguments of a described call, on random data that the op accepts."""
    document = json.loads(text)
    target: Any = torch.ops
    for part in document["op"].split("."):
        target = getattr(target, part)
    limit = _index_limit(document)
    _widen_statistics(document, device)
    args = [_decode(each, device, limit) for each in document["args"]]
    kwargs = {name: _decode(each, device, limit) for name, each in document["kwargs"].items()}
    return target, args, kwargs


def _widen_statistics(document: dict[str, Any], device: torch.device) -> None:
    """Layer normalisation keeps mean and deviation in fp32 on a GPU, not so on a CPU."""
    if device.type == "cuda" and ".native_layer_norm_backward." in document["op"]:
        for place in (3, 4):
            document["args"][place]["dtype"] = "float32"


def _index_limit(document: dict[str, Any]) -> int:
    """How large an index may be: the op's first tensor has that many rows or classes."""
    first = next((each for each in document["args"] if isinstance(each, dict)), {})
    shape = first.get("shape") or [1]
    name = document["op"].split(".")[1]
    if name == "embedding_dense_backward":
        return int(document["args"][2])
    if name.startswith("nll_loss") and name.endswith("backward"):
        return int(document["args"][1]["shape"][1])
    if name.startswith("nll_loss"):
        return int(shape[1])
    if name in ("embedding", "index", "index_put", "index_select", "gather"):
        return int(shape[0])
    return 1


def _decode(value: Any, device: torch.device, limit: int) -> Any:
    if isinstance(value, list):
        return [_decode(each, device, limit) for each in value]
    if not isinstance(value, dict):
        return value
    if "torch" in value:
        return getattr(torch, value["torch"])
    if "device" in value:
        return device
    if "other" in value:
        raise ValueError(f"cannot rebuild {value['other']}")
    dtype = getattr(torch, value["dtype"])
    pairs = zip(value["shape"], value["stride"], strict=True)
    size = 1 + sum((length - 1) * stride for length, stride in pairs if length)
    # A flat one first: of an expanded tensor several elements are one number.
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.randn(size, dtype=torch.float32, device=device).to(dtype)
    elif dtype is torch.bool:
        flat = torch.ones(size, dtype=dtype, device=device)
    else:
        flat = torch.randint(0, limit, (size,), dtype=dtype, device=device)
    return flat.as_strided(value["shape"], value["stride"])
