"""Imported once by the process that `forked` forks: loads what every run would load again."""

from contextlib import suppress

import torch
from small_models import captured

import meshwright.cli.run
import meshwright.execute.session  # noqa: F401
from meshwright.simulate.simulate import simulate
from small import connected, layers, stages

with suppress(ImportError):
    from transformers import (  # noqa: F401
        BertForMaskedLM,
        GPT2LMHeadModel,
        LlamaForCausalLM,
        MixtralForCausalLM,
    )

# Loads compiled kernels, which start no threads.
_graph = layers(2)
simulate(_graph, connected(2), stages(_graph, [["d0"], ["d1"]], "1f1b", 2))
# Half of the time of a process's first trace goes into what torch sets up once. Threads do not
# survive a fork, and autograd has some in builds for GPUs.
torch.set_num_threads(1)
if torch.version.cuda is None:
    captured("perceptron")
