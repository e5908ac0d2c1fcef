"""Every call of small models runs by itself, on the CPU."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture import profile  # noqa: E402
from meshwright.capture.optimiser import Optimiser, find_optimiser  # noqa: E402
from meshwright.capture.profile import TimedCall, list_calls, time_calls  # noqa: E402
from meshwright.capture.replay import replayed  # noqa: E402
from meshwright.capture.stepped import CLASSES  # noqa: E402
from meshwright.capture.trace import trace_step  # noqa: E402

CPU = torch.device("cpu")


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.convolution(x))).mean()


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x).square().mean()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12)

    def forward(self, ids: Any) -> Any:
        return F.cross_entropy(self.head(self.table(ids)).flatten(0, 1), ids.flatten())


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "pictures": (Pictures, lambda: torch.empty(2, 3, 8, 8)),
    "sequences": (Sequences, lambda: torch.empty(2, 6, 8)),
    "words": (Words, lambda: torch.empty(2, 6, dtype=torch.long)),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call runs once, on what is in the cache."""
    for name, value in (("RUNS", 1), ("WARM_UPS", 0), ("CACHE_BYTES", 64)):
        monkeypatch.setattr(profile, name, value)
    monkeypatch.setattr("meshwright.capture.replay._UPDATE_BYTES", 4096)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(MODELS))
def test_every_call_of_a_step_runs_by_itself(name: str, autocast: Any) -> None:
    make, inputs = MODELS[name]
    with torch.device("meta"):
        trace = trace_step(
            make(), (inputs(),), {}, loss=None, optimizer=Optimiser.ADAMW, autocast=autocast
        )
    calls = Counter(list_calls(trace))
    timed = dict(time_calls(calls, CPU))
    assert list(timed) == list(calls)
    assert {text: found for text, found in timed.items() if not isinstance(found, TimedCall)} == {}


@pytest.mark.parametrize("name", list(CLASSES))
def test_updates_of_optimizers_that_take_their_own_steps_run_by_themselves(name: str) -> None:
    with torch.device("meta"):
        model, given = nn.Linear(8, 8), torch.empty(2, 8)
    trace = trace_step(model, (given,), {}, loss=lambda y: y.sum(), optimizer=find_optimiser(name))
    calls = Counter(text for text in list_calls(trace) if "_fused_step_" in text)
    assert len(calls) == 2, "of the weight and of the bias"
    assert all(isinstance(found, TimedCall) for _, found in time_calls(calls, CPU))


def test_what_cannot_run_is_told_and_ends_nothing() -> None:
    vector = '{"dtype":"float32","shape":[2],"stride":[1]}'
    bad, good = (
        f'{{"args":[{vector}],"kwargs":{{}},"op":"aten.{name}.default"}}' for name in ("mm", "sin")
    )
    timed = dict(time_calls(Counter([bad, good]), CPU))
    assert isinstance(timed[good], TimedCall)
    assert str(timed[bad]).startswith("RuntimeError: ")


def test_a_call_is_replayed_under_its_own_setting_for_tf32() -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    text = '{"args":[[2]],"kwargs":{},"op":"aten.zeros.default","tf32":true}'
    with replayed(text, CPU):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
    with replayed(text.replace(',"tf32":true', ""), CPU):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


def test_an_update_runs_for_many_parameters_at_once() -> None:
    # Parameter, gradient and two moments of 64 floats and a counter: 1,028 bytes, of 4,096.
    with torch.device("meta"):
        model = nn.Linear(8, 8, bias=False)
        trace = trace_step(
            model, (torch.empty(2, 8),), {}, loss=lambda y: y.sum(), optimizer=Optimiser.ADAMW
        )
    (text,) = (text for text in list_calls(trace) if "_fused_adamw_" in text)
    with replayed(text, CPU) as replay:
        assert replay.copies == 4
        replay.run()
