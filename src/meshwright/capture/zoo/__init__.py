"""Named PyTorch models, ready to capture. Needs torch; half of them need the `zoo` extra too."""

from meshwright.capture.workload import Workload
from meshwright.capture.zoo.catalogue import Precision, build, zoo_models
from meshwright.capture.zoo.workload import ZooModel

__all__ = ["Precision", "Workload", "ZooModel", "build", "zoo_models"]
