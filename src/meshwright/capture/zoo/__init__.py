"""Named PyTorch models, ready to capture. Needs torch; half of them need the `zoo` extra too."""

from meshwright.capture.zoo.catalogue import Precision, build, zoo_models
from meshwright.capture.zoo.workload import Workload, ZooModel

__all__ = ["Precision", "Workload", "ZooModel", "build", "zoo_models"]
