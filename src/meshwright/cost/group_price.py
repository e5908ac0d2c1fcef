"""The collectives of a cluster, each set of groups priced once.

Prices follow from frozen data, and plans that are tried one after the other ask for the same ones:
stage costs first, then the simulator.
"""

from collections import OrderedDict
from weakref import WeakKeyDictionary, ref

from meshwright.cluster.cluster import Cluster
from meshwright.cost.axis import axis_model
from meshwright.cost.collective import Collective, CollectiveModel

Groups = tuple[tuple[int, ...], ...]
GroupCall = tuple[Collective, tuple[int, ...]]
"""What a group of devices does together."""

_MAX_MODELS = 512
"""How many models of collectives are remembered for one cluster."""


class GroupPrices:
    """What is known so far of a cluster's collectives."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = ref(cluster)  # which would never be forgotten otherwise
        self._models: OrderedDict[tuple[Collective, Groups], CollectiveModel] = OrderedDict()

    @property
    def cluster(self) -> Cluster:
        """The cluster whose collectives are priced."""
        cluster = self._cluster()
        assert cluster is not None, "whoever asks has the cluster"
        return cluster

    def model(self, collective: Collective, groups: Groups) -> CollectiveModel:
        """The cost of a collective of any size that all these groups run at once."""
        key = (collective, groups)
        if key in self._models:
            self._models.move_to_end(key)
        else:
            self._models[key] = axis_model(self.cluster, collective, groups)
            if len(self._models) > _MAX_MODELS:
                self._models.popitem(last=False)
        return self._models[key]

    def seconds(self, collective: Collective, groups: Groups, message_bytes: float) -> float:
        """The time of one of a size, nothing else running."""
        if message_bytes <= 0 or len(groups[0]) == 1:
            return 0.0
        return self.model(collective, groups).cost(message_bytes).seconds

    def own_groups(self, collective: Collective, groups: Groups, own: frozenset[int]) -> Groups:
        """Those that some devices are in; all, where the others use some of the same links."""
        ours = tuple(group for group in groups if not own.isdisjoint(group))
        if len(ours) in (0, len(groups)):
            return groups
        others = tuple(group for group in groups if own.isdisjoint(group))
        used, taken = (
            {link for line in self.model(collective, each).lines for link in line.links.tolist()}
            for each in (ours, others)
        )
        return ours if used.isdisjoint(taken) else groups


_OF_CLUSTER: WeakKeyDictionary[Cluster, GroupPrices] = WeakKeyDictionary()


def group_prices(cluster: Cluster) -> GroupPrices:
    """The prices of a cluster's collectives, with what is known so far."""
    if cluster not in _OF_CLUSTER:
        _OF_CLUSTER[cluster] = GroupPrices(cluster)
    return _OF_CLUSTER[cluster]
