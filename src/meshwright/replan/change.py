"""Makes the cluster that is planned for: another one, or the old one with changes."""

from collections.abc import Sequence
from pathlib import Path

from meshwright.change.apply import change_cluster, in_order
from meshwright.change.kind import Batch, Change
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.replan.bandwidth import read_bandwidths


def change_devices(
    old: Cluster, new: Cluster | None, changes: Sequence[Change], bandwidth: Path | None
) -> Cluster:
    """The new cluster, or the old one, with changes made and measured bandwidths put in."""
    if any(isinstance(each, Batch) for each in changes):
        raise InputError("batch: must stay, since a run goes on with the batch that it had")
    measured = [] if bandwidth is None else read_bandwidths(bandwidth)
    if new is None and not changes and not measured:
        raise InputError(
            "replan: must have something that has changed, such as a host that is gone "
            "(without), a cluster or measured bandwidths"
        )
    cluster = old if new is None else new
    for change in in_order([*changes, *measured]):
        assert not isinstance(change, Batch)
        cluster = change_cluster(cluster, change)
    return cluster
