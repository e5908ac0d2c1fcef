"""Named PyTorch models, ready to capture. Needs torch; half of them need the `zoo` extra too."""

from meshwright.capture.workload import Workload
from meshwright.capture.zoo.catalogue import build, zoo_models
from meshwright.zoo.model import ZooModel

__all__ = ["Workload", "ZooModel", "build", "zoo_models"]
