"""Models of libraries take the branches that they take on real tensors, and are captured whole."""

from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.graph.graph import Graph, Phase  # noqa: E402


@pytest.fixture
def masks() -> ModuleType:
    """Where transformers decides on a mask."""
    pytest.importorskip("transformers", reason="this model needs the zoo extra")
    from transformers import masking_utils

    module: ModuleType = masking_utils
    return module


def tiny_gpt2() -> Any:
    transformers: Any = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=1,
            n_embd=32,
            n_head=2,
            vocab_size=64,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            loss_type="ForCausalLM",
        )
    )


def attention_kinds(graph: Graph) -> list[str]:
    return [kind for kind in graph.kind if "attention" in kind]


def test_whole_sequences_are_attended_to_causally_without_a_mask(masks: ModuleType) -> None:
    before = masks.find_packed_sequence_indices
    with torch.device("meta"):
        ids = torch.empty(2, 8, dtype=torch.long)
        graph = capture(tiny_gpt2(), kwargs={"input_ids": ids, "labels": ids})
    assert attention_kinds(graph) == [
        "causal_dropout_attention",
        "causal_dropout_attention_backward",
    ]
    assert masks.find_packed_sequence_indices is before


def test_the_library_is_as_before_when_capture_fails(masks: ModuleType) -> None:
    before = masks.find_packed_sequence_indices
    with torch.device("meta"), pytest.raises(InputError, match="loss: must be a scalar"):
        capture(tiny_gpt2(), kwargs={"input_ids": torch.empty(2, 8, dtype=torch.long)})
    assert masks.find_packed_sequence_indices is before


class Attending(nn.Module):
    """Heads of a layer's features, attended to within the layer."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.features = nn.Linear(width, 3 * width)

    def attend(self, x: Any) -> Any:
        parts = self.features(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(query, key, value)

    def forward(self, x: Any) -> Any:
        return self.attend(x).sum()


class Recomputed(Attending):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, x: Any) -> Any:
        return checkpoint(self.attend, x, use_reentrant=self.use_reentrant).sum()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x).sum()


class Multihead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0].sum()


@pytest.mark.parametrize("make", [Encoder, Multihead])
def test_attention_inside_torchs_modules_is_one_op(make: Any) -> None:
    with torch.device("meta"):
        graph = capture(make(), (torch.empty(2, 6, 8),))
    assert attention_kinds(graph) == ["dropout_attention", "dropout_attention_backward"]
    # 2 samples x 2 heads x 6 x 6 pairs x 4 wide, two products of two operations a pair.
    attention = graph.kind.index("dropout_attention")
    assert graph.flops[attention] == 2 * 2 * (2 * 2) * (6 * 6) * 4
    assert not any("softmax" in kind for kind in graph.kind)


def test_a_recomputed_attention_runs_once_more_in_backward() -> None:
    with torch.device("meta"):
        graph = capture(Recomputed(use_reentrant=False), (torch.empty(2, 6, 8),))
    phases = [(kind, graph.phase[op]) for op, kind in enumerate(graph.kind) if "attention" in kind]
    assert phases == [
        ("attention", Phase.FORWARD),
        ("attention", Phase.BACKWARD),
        ("attention_backward", Phase.BACKWARD),
    ]


class Trained(Recomputed):
    """Its input gets a gradient, as with adapters, and its parameters lie inside."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.requires_grad_())


class Preceded(Recomputed):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__(use_reentrant)
        self.before = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return super().forward(self.before(x))


@pytest.mark.parametrize("make", [Trained, Preceded])
def test_a_reentrant_checkpoint_is_refused_in_one_line(make: Any) -> None:
    with torch.device("meta"):
        model, given = make(use_reentrant=True), torch.empty(2, 6, 8)
        with pytest.raises(InputError, match=f"{make.__name__}: .*use_reentrant=False") as caught:
            capture(model, (given,))
    assert "\n" not in str(caught.value)
