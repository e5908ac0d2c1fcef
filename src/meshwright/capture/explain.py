"""Says in one line why a model cannot be traced."""

import contextlib
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from meshwright.capture.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from meshwright.errors import InputError


@contextlib.contextmanager
def explained(model: nn.Module) -> Iterator[None]:
    """Turn what tracing raises into one line: which module, which line, what to change."""
    log = logging.getLogger("torch._subclasses.fake_tensor")  # it prints a traceback of its own
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except InputError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise InputError(
            f"model {type(model).__name__}: cannot be traced, because {_place(error)} depends on "
            f"the values of a tensor ({error.func}); compute with masks of fixed shape instead "
            f"(for experts: a grouped or batched implementation)"
        ) from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"model {type(model).__name__}: cannot be traced at {_place(error)}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    finally:
        log.disabled = was_disabled


def _place(error: BaseException) -> str:
    """The innermost line that is neither torch's nor ours."""
    own = (Path(torch.__file__).parent, Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not any(Path(frame.filename).is_relative_to(folder) for folder in own):
            return f"{Path(frame.filename).name}:{frame.lineno} ({frame.line})"
    return "an unknown line"
