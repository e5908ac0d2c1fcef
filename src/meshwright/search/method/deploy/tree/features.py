"""What a network sees of a deployment that is half decided: a graph of two kinds of nodes.

Groups of ops and device groups are nodes (TAG, section 4.2): what they cost, what has been decided,
and what the simulator said of it. Everything is a ratio, to the step of data parallelism, to the
mean or to the whole, so that models and clusters that were never seen look like those that were.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.array import freeze_arrays
from meshwright.graph.graph import Bools, Floats
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.estimate import estimate_actions
from meshwright.search.method.deploy.evaluate import StrategyEvaluation
from meshwright.search.method.deploy.option import Strategy
from meshwright.search.method.deploy.tree.describe import (
    cut_logs,
    describe_action,
    describe_actions,
    describe_ops,
    describe_pairs,
    describe_places,
    describe_tensors,
    find_alike,
    squash,
    squash_signed,
)

Singles = npt.NDArray[np.float32]

OP_WIDTH, PLACE_WIDTH, ACTION_WIDTH = 26, 15, 38
OP_OP_WIDTH, PLACE_PLACE_WIDTH, OP_PLACE_WIDTH = 4, 4, 6
"""How many numbers describe a node, an action and an edge."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Features:
    """The graph, and the actions of the group to decide."""

    ops: Singles
    """Groups of ops x numbers."""
    places: Singles
    """Device groups x numbers."""
    op_op: Singles
    """Reader and writer x numbers; an edge joins groups between which tensors go."""
    op_op_edges: Bools
    place_place: Singles
    op_place: Singles
    """Groups of ops x device groups x numbers; an edge is a placement."""
    op_place_edges: Bools
    actions: Singles
    """Actions x numbers."""
    members: Bools
    """Action x device group."""
    allowed: Bools
    """By action."""
    group: int
    """The group to decide."""

    def __post_init__(self) -> None:
        freeze_arrays(self)


class FeatureMaker:
    """Makes the features of one analysis; what no decision changes is computed once."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._estimate = estimate_actions(analysis)
        self._number = {action: number for number, action in enumerate(analysis.actions)}
        self._ops = describe_ops(analysis, self._estimate)
        self._places = describe_places(analysis, self._estimate)
        self._pairs = describe_pairs(analysis, self._estimate)
        self._tensors, self._moved = describe_tensors(analysis, self._estimate)
        self._shapes = np.array([describe_action(action, analysis) for action in analysis.actions])
        self._actions = np.concatenate(
            [self._shapes, describe_actions(analysis, self._estimate)], axis=1
        )
        self._alike = find_alike(analysis)

    def make(self, prefix: Strategy, evaluation: StrategyEvaluation | None) -> Features:
        """Of the group after those of the prefix."""
        analysis, estimate = self.analysis, self._estimate
        chosen = self._complete(prefix)
        edges = estimate.members[chosen]
        group = len(prefix)
        return Features(
            ops=np.concatenate(
                [self._ops, self._decided(chosen, group), _op_feedback(analysis, evaluation)],
                axis=1,
                dtype=np.float32,
            ),
            places=np.concatenate(
                [self._places, self._placed(chosen, group), _place_feedback(analysis, evaluation)],
                axis=1,
                dtype=np.float32,
            ),
            op_op=np.concatenate(
                [self._tensors, _compare(chosen)[..., None]], axis=2, dtype=np.float32
            ),
            op_op_edges=self._moved > 0,
            place_place=np.concatenate(
                [self._pairs, _link_feedback(analysis, evaluation)[..., None]],
                axis=2,
                dtype=np.float32,
            ),
            op_place=self._placements(chosen, group),
            op_place_edges=edges,
            actions=np.concatenate(
                [self._actions, self._choices(chosen, group), self._whole(group, evaluation)],
                axis=1,
                dtype=np.float32,
            ),
            members=estimate.members,
            allowed=analysis.allowed[group],
            group=group,
        )

    def _complete(self, prefix: Strategy) -> npt.NDArray[np.int_]:
        """The number of each group's action; those that are not decided take the first one's, or
        the first that they may."""
        decided = [self._number[action] for action in prefix]
        first = decided[0] if decided else 0
        allowed = self.analysis.allowed
        numbers = np.where(allowed[:, first], first, allowed.argmax(axis=1))
        numbers[: len(decided)] = decided
        return numbers

    def _decided(self, chosen: npt.NDArray[np.int_], group: int) -> Floats:
        """By group of ops: whether it is decided, is next, what it has."""
        analysis = self.analysis
        place = np.arange(analysis.num_groups)
        flags = [place < group, place == group, chosen == chosen[0]]
        return np.concatenate([np.stack(flags, axis=1), self._shapes[chosen]], axis=1)

    def _placed(self, chosen: npt.NDArray[np.int_], group: int) -> Floats:
        """By device group: how much of the compute is there, of all groups and of the decided."""
        weight = self._ops[:, :1] / max(1e-12, float(self._ops[:, 0].sum()))
        used = self._estimate.used[chosen]
        return np.stack(
            [(weight * used).sum(axis=0), (weight[:group] * used[:group]).sum(axis=0)], axis=1
        )

    def _placements(self, chosen: npt.NDArray[np.int_], group: int) -> Singles:
        count = self.analysis.num_groups
        options = np.array([action.option for action in self.analysis.actions])[chosen]
        by_group = np.zeros((count, OP_PLACE_WIDTH - 1), dtype=np.float32)
        by_group[np.arange(count), options] = 1.0
        by_group[:group, -1] = 1.0
        used = self._estimate.used[chosen]
        shape = (*used.shape, OP_PLACE_WIDTH - 1)
        return np.concatenate(
            [np.broadcast_to(by_group[:, None], shape), used[..., None]], axis=2, dtype=np.float32
        )

    def _choices(self, chosen: npt.NDArray[np.int_], group: int) -> Floats:
        """By action: what it changes for the group to decide, the others staying as they are.

        At the root the others follow, so that nothing moves and the whole model counts.
        """
        estimate, step = self._estimate, self._estimate.step_seconds
        usual = int(chosen[group])
        numbers = np.arange(len(self.analysis.actions))
        compute = estimate.group_seconds[group]
        part = self.analysis.gradient_bytes[group] / max(1.0, self.analysis.gradient_bytes.sum())
        sync = estimate.sync_seconds * part
        moved = self._moves(chosen, group) if group else np.zeros(len(numbers))
        before = int(chosen[group - 1]) if group else usual
        return np.stack(
            [
                squash_signed((compute - compute[usual]) / step),
                squash_signed((sync - sync[usual]) / step),
                squash_signed((moved - moved[usual]) / step),
                squash(compute / step),
                squash(sync / step),
                squash(moved / step),
                (numbers == usual) & (group > 0),
                (numbers == before) & (group > 0),
                numbers == 0,
                np.isin(numbers, chosen[:group]),
            ],
            axis=1,
        ).astype(np.float64)

    def _moves(self, chosen: npt.NDArray[np.int_], group: int) -> Floats:
        """By action: seconds that tensors take to and from neighbours that are placed otherwise."""
        estimate = self._estimate
        neighbours = self._moved[group] + self._moved[:, group]
        seconds = np.zeros(len(self.analysis.actions))
        for other in np.unique(chosen[neighbours > 0]).tolist():
            size = float(neighbours[(chosen == other) & (neighbours > 0)].sum())
            union = estimate.members | estimate.members[other]
            both = union[:, :, None] & union[:, None, :]
            slowest = np.where(both, estimate.byte_seconds[None], 0.0).max(axis=(1, 2))
            seconds += np.where(self._alike[other], 0.0, size * slowest)
        return seconds

    def _whole(self, group: int, evaluation: StrategyEvaluation | None) -> Floats:
        """The same for all actions: where the search stands."""
        estimate, analysis = self._estimate, self.analysis
        compute, sync = float(estimate.compute_seconds[0]), float(estimate.sync_seconds[0])
        here = 0.0 if evaluation is None else evaluation.step_seconds / estimate.step_seconds
        row = [
            group == 0,
            group / analysis.num_groups,
            sync / estimate.step_seconds,
            float(cut_logs(np.array(max(sync, 1e-12) / max(compute, 1e-12)))),
            float(squash(np.array(here))),
            evaluation is not None and not evaluation.fits,
            len(analysis.device_groups) / 12,
            float(np.log2(analysis.cluster.num_devices)) / 6,
        ]
        return np.broadcast_to(np.array(row, dtype=np.float64), (len(analysis.actions), len(row)))


def _compare(chosen: npt.NDArray[np.int_]) -> Bools:
    """Group x group: whether they have the same action."""
    same: Bools = chosen[:, None] == chosen[None, :]
    return same


def _op_feedback(analysis: Analysis, evaluation: StrategyEvaluation | None) -> Floats:
    if evaluation is None:
        return np.zeros((analysis.num_groups, 4))
    told = evaluation.feedback
    known = np.ones(analysis.num_groups)
    return np.stack([told.group_start, told.group_finish, told.group_busy, known], axis=1)


def _place_feedback(analysis: Analysis, evaluation: StrategyEvaluation | None) -> Floats:
    if evaluation is None:
        return np.zeros((len(analysis.device_groups), 2))
    told = evaluation.feedback
    return np.stack([told.place_idle, squash(told.place_peak)], axis=1)


def _link_feedback(analysis: Analysis, evaluation: StrategyEvaluation | None) -> Floats:
    count = len(analysis.device_groups)
    return np.ones((count, count)) if evaluation is None else evaluation.feedback.link_idle
