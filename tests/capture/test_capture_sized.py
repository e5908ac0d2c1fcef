"""The calls of a step at several numbers of samples, and those that GPUs run in their place."""

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402

from meshwright.capture import profile  # noqa: E402
from meshwright.capture.profile import TimedCall, time_calls  # noqa: E402
from meshwright.capture.replay import replayed  # noqa: E402
from meshwright.capture.sized import sized_calls  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402


class Pictures(nn.Module):
    """So many channels that a GPU's kernels like those of a pixel side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, pictures: Any) -> Any:
        return self.second(self.norm(self.first(pictures)).relu()).square().mean()


def workload(channels: int) -> Workload:
    with torch.device("meta"):
        return Workload(name="pictures", model=Pictures(channels), args=(torch.empty(4, 3, 6, 6),))


def test_gpus_run_convolutions_on_channels_that_lie_together() -> None:
    plain, found = (sized_calls(workload(96), "sgd", on_gpu=each) for each in (False, True))
    assert not plain.as_run
    assert found.counts == plain.counts
    assert list(found.counts) == [4, 2, 1]
    convolutions = [
        call for counts in found.counts.values() for call in counts if "aten.convolution" in call
    ]
    assert len(convolutions) == 3 * 5, "two forward and three backward, of three numbers of samples"
    for call in convolutions:
        planned, run = (json.loads(each)["args"] for each in (call, found.as_run[call]))
        assert [each["shape"] for each in planned[:2]] == [each["shape"] for each in run[:2]]
        assert planned != run
    assert not sized_calls(workload(8), "sgd", on_gpu=True).as_run, "too few channels"


def test_what_is_run_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RUNS", 1), ("WARM_UPS", 0), ("CACHE_BYTES", 64)):
        monkeypatch.setattr(profile, name, value)
    asked: list[str] = []

    def noted(text: str, *given: Any) -> Any:
        asked.append(text)
        return replayed(text, *given)

    monkeypatch.setattr("meshwright.capture.profile.replayed", noted)
    found = sized_calls(workload(96), "sgd", batches=(), on_gpu=True)
    timed = dict(time_calls(found.counts[4], torch.device("cpu"), as_run=found.as_run))
    assert list(timed) == list(found.counts[4])
    assert all(isinstance(each, TimedCall) for each in timed.values()), timed
    assert asked == [found.as_run.get(call, call) for call in timed]
