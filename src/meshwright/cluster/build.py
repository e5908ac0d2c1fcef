"""Builders: functions that return a Cluster. Each is keyword-only and checks its arguments."""

from meshwright.cluster.builder.centre import h100_spine_leaf, tpu_fat_tree
from meshwright.cluster.builder.grid import link_torus, mesh, torus
from meshwright.cluster.builder.hosts import from_hosts
from meshwright.cluster.builder.matrix import (
    from_links,
    from_matrix,
    fully_connected,
    random_blk_1,
    random_blk_2,
    uniform_dist,
)
from meshwright.cluster.builder.mixed import mixed
from meshwright.cluster.builder.paper import (
    dgx1,
    nvlink_pairs,
    tag_cloud,
    tag_testbed,
    titan_v_hosts,
)
from meshwright.cluster.builder.product import one_host, rail_pod
from meshwright.cluster.builder.switched import fat_tree, hierarchical, multi_rail, spine_leaf

__all__ = [
    "dgx1",
    "fat_tree",
    "from_hosts",
    "from_links",
    "from_matrix",
    "fully_connected",
    "h100_spine_leaf",
    "hierarchical",
    "link_torus",
    "mesh",
    "mixed",
    "multi_rail",
    "nvlink_pairs",
    "one_host",
    "rail_pod",
    "random_blk_1",
    "random_blk_2",
    "spine_leaf",
    "tag_cloud",
    "tag_testbed",
    "titan_v_hosts",
    "torus",
    "tpu_fat_tree",
    "uniform_dist",
]
