"""Pieces of tensors: random boxes and ranges, written by many and read by others."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from torch import Tensor  # noqa: E402
from torch import dtype as torch_dtype  # noqa: E402

from meshwright.errors import InputError  # noqa: E402
from meshwright.execute import tensor_file  # noqa: E402
from meshwright.execute.checkpoint import (  # noqa: E402
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from meshwright.execute.cut.cut import WHOLE, Cut  # noqa: E402
from meshwright.execute.holding import (  # noqa: E402
    choose_parts,
    fill_parts,
    join_parts,
    name_parts,
    write_parts,
)
from meshwright.execute.manifest import (  # noqa: E402
    Manifest,
    SavedPiece,
    SavedTensor,
    check_pieces,
    decode_manifest,
    encode_manifest,
)
from meshwright.execute.piece import (  # noqa: E402
    TensorHolding,
    Tile,
    hold_share,
    whole_holding,
)
from meshwright.execute.shard import Share  # noqa: E402
from meshwright.program.piece import (  # noqa: E402
    Box,
    cut_run,
    find_overlaps,
    subtract,
    whole_box,
)

Shape = tuple[int, ...]


def indices(box: Box) -> list[Shape]:
    """Of its numbers, in their order."""
    ranges = [range(at, at + size) for at, size in zip(box.offset, box.shape, strict=True)]
    return list(product(*ranges))


def numbered(shape: Shape) -> Tensor:
    made: Tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    return made


@st.composite
def boxes(draw: st.DrawFn, shape: Shape) -> Box:
    offset = tuple(draw(st.integers(0, size - 1)) for size in shape)
    extent = tuple(draw(st.integers(1, size - at)) for at, size in zip(offset, shape, strict=True))
    return Box(offset, extent)


@st.composite
def cuts(draw: st.DrawFn, shape: Shape) -> tuple[Cut, int]:
    """A dimension in segments, and a width of a team."""
    dim = draw(st.integers(0, len(shape) - 1))
    width = draw(st.integers(1, 4))
    if shape[dim] % width or draw(st.booleans()):
        return Cut.of(dim, [shape[dim]]), width
    sizes, left = [], shape[dim] // width
    while left:
        sizes.append(draw(st.integers(1, left)))
        left -= sizes[-1]
    return Cut.of(dim, [width * size for size in sizes]), width


@st.composite
def divisions(draw: st.DrawFn, shape: Shape) -> list[Share]:
    """A tensor cut over a team, or not, and what each member has over holders."""
    is_cut = draw(st.booleans())
    cut, width = draw(cuts(shape)) if shape and is_cut else (WHOLE, 1)
    holders = draw(st.integers(1, 4))
    return [
        Share(cut, width, member, holders, holder)
        for member in range(width)
        for holder in range(holders)
    ]


@st.composite
def strided(draw: st.DrawFn, shape: Shape) -> Tensor:
    """A dense tensor of different numbers in any order in memory."""
    order = draw(st.permutations(range(len(shape))))
    made = numbered(tuple(shape[dim] for dim in order))
    back: Tensor = made.permute([order.index(dim) for dim in range(len(shape))])
    return back


def held(whole: Tensor, share: Share) -> tuple[Tensor, TensorHolding]:
    """What a rank has of a tensor."""
    return share.of(whole).clone(), hold_share(whole.shape, whole.stride(), share)


SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


def test_the_middle_of_a_matrix_is_three_boxes() -> None:
    # numbers 2 to 10 of 4 x 3: (0, 2), rows 1 and 2, (3, 0) and (3, 1)
    assert list(cut_run((4, 3), (0, 1), 2, 11)) == [
        Box((0, 2), (1, 1)), Box((1, 0), (2, 3)), Box((3, 0), (1, 2)),
    ]  # fmt: skip


def test_a_member_has_a_tile_of_each_segment() -> None:
    # 2 x 12 columns of query, key, value: the second of two members has columns 2, 3, 6, 7, 10, 11
    holding = hold_share((2, 12), (12, 1), Share(Cut(1, ((3, 4),)), 2, 1))
    assert holding.shape == (2, 12)
    assert holding.tiles == tuple(
        Tile(Box((0, 2 + 4 * k), (2, 2)), 2 * k, (6, 1)) for k in range(3)
    )


def test_a_shard_of_a_members_part_begins_at_its_row() -> None:
    # the second of two holders has row 1 of what that member has
    holding = hold_share((2, 12), (12, 1), Share(Cut(1, ((3, 4),)), 2, 1, 2, 1))
    assert holding.boxes == tuple(Box((1, 2 + 4 * k), (1, 2)) for k in range(3))
    assert [tile.at for tile in holding.tiles] == [0, 2, 4]


def test_a_hole_in_the_middle_leaves_four_boxes() -> None:
    left = list(subtract(Box((0, 0), (3, 3)), Box((1, 1), (1, 1))))
    assert left == [
        Box((0, 0), (1, 3)), Box((2, 0), (1, 3)), Box((1, 0), (1, 1)), Box((1, 2), (1, 1)),
    ]  # fmt: skip


@given(
    SHAPES.flatmap(
        lambda shape: st.tuples(
            st.just(shape), st.permutations(range(len(shape))), st.integers(0), st.integers(0)
        )
    )
)
def test_boxes_of_a_run_are_its_numbers_in_order(
    case: tuple[Shape, list[int], int, int],
) -> None:
    shape, order, one, other = case
    size = torch.Size(shape).numel()
    start, stop = sorted((one % (size + 1), other % (size + 1)))
    found = list(cut_run(shape, order, start, stop))
    assert len(found) <= max(1, 2 * len(order) - 1)
    ordered = sorted(indices(whole_box(shape)), key=lambda index: [index[dim] for dim in order])
    listed = [
        index
        for box in found
        for index in sorted(indices(box), key=lambda index: [index[dim] for dim in order])
    ]
    assert listed == ordered[start:stop]


@given(SHAPES.flatmap(lambda shape: st.tuples(strided(shape), divisions(shape))))
def test_tiles_are_where_the_numbers_of_a_share_are(case: tuple[Tensor, list[Share]]) -> None:
    whole, shares = case
    count = torch.zeros(whole.shape)
    for share in shares:
        data, holding = held(whole, share)
        assert holding.shape == tuple(whole.shape)
        assert holding.size == data.numel()
        for tile in holding.tiles:
            where = tile.box.within(whole_box(whole.shape))
            assert torch.equal(tile.view(data), whole[where])
            count[where] += 1
    assert (count == 1).all()  # each number has one holder


@given(SHAPES.flatmap(lambda shape: st.tuples(boxes(shape), st.lists(boxes(shape), max_size=4))))
def test_every_number_is_found_once_or_missing(case: tuple[Box, list[Box]]) -> None:
    wanted, there = case
    overlaps, missing = find_overlaps([wanted], there)
    found = [*(each.box for each in overlaps), *missing]
    assert sorted(index for box in found for index in indices(box)) == indices(wanted)
    known = {index for each in there for index in indices(each)}
    absent = {index for box in missing for index in indices(box)}
    assert absent == set(indices(wanted)) - known
    assert all(set(indices(each.box)) <= set(indices(there[each.source])) for each in overlaps)


def save(folder: Path, states: Sequence[dict[str, tuple[Tensor, TensorHolding]]]) -> Manifest:
    """What ranks do together, each with its own state."""
    parts = [
        name_parts(
            {name: data for name, (data, _) in state.items()},
            {name: holding for name, (_, holding) in state.items()},
        )
        for state in states
    ]
    held = [{key: each.num_bytes for key, each in own.items()} for own in parts]
    written = []
    for rank, own in enumerate(parts):
        chosen = {key: own[key] for key in choose_parts(held, rank)}
        written.append(write_parts(folder, rank, chosen, lambda: None))
    assert not any(each.fault for each in written)
    return decode_manifest(encode_manifest(join_parts(3, written)), folder)


@settings(max_examples=60, deadline=None)
@given(
    SHAPES.flatmap(
        lambda shape: st.tuples(strided(shape), divisions(shape), strided(shape), divisions(shape))
    ),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    st.booleans(),
)
def test_any_share_is_read_from_any_shares(
    case: tuple[Tensor, list[Share], Tensor, list[Share]], dtype: torch_dtype, is_twice: bool
) -> None:
    whole, written, other, wanted = case
    whole = whole.to(dtype)
    states = [{"w": held(whole, share)} for share in written] * (1 + is_twice)
    with TemporaryDirectory() as name:
        folder = Path(name)
        manifest = save(folder, states)
        sizes = [each.box.size for each in manifest.tensors["w"].pieces]
        assert sum(sizes) == whole.numel()  # replicas write each piece once
        laid_out = torch.empty_like(other.to(dtype)).copy_(whole)
        for share in (*wanted, Share()):
            expected, holding = held(laid_out, share)
            target = torch.zeros_like(expected)
            fill_parts(folder, manifest.tensors, {"w": target}, {"w": holding}, lambda: None)
            assert torch.equal(target, expected)


def test_a_rank_reads_only_the_bytes_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = numbered((8, 6))
    halves = [Share(Cut(0, ((1, 8),)), 2, member) for member in range(2)]
    manifest = save(tmp_path, [{"w": held(whole, each)} for each in halves])
    seen: list[tuple[str, Shape]] = []
    real = tensor_file._read_extract

    def spy(file: object, path: Path, extract: tensor_file.Extract) -> Tensor:
        part = real(file, path, extract)
        seen.append((path.name, tuple(part.shape)))
        return part

    monkeypatch.setattr(tensor_file, "_read_extract", spy)
    # the fourth of seven holders has 21 to 27 of a row: (3, 3) to (3, 5), (4, 0) to (4, 3)
    target, holding = torch.zeros(7), hold_share((8, 6), (6, 1), Share(holders=7, holder=3))
    fill_parts(tmp_path, manifest.tensors, {"w": target}, {"w": holding}, lambda: None)
    assert target.tolist() == [float(each) for each in range(21, 28)]
    assert seen == [("rank-00000.safetensors", (1, 3)), ("rank-00001.safetensors", (1, 4))]


def test_whoever_has_all_of_a_tensor_writes_it(tmp_path: Path) -> None:
    whole = numbered((4, 2))
    half = Share(holders=2, holder=0)
    manifest = save(tmp_path, [{"w": held(whole, half)}, {"w": (whole, whole_holding(whole))}])
    assert manifest.version == 1
    assert [each.file for each in manifest.tensors["w"].pieces] == ["rank-00001.safetensors"]


def test_a_tensor_of_which_nobody_has_a_part_is_not_saved(tmp_path: Path) -> None:
    half = hold_share((4, 2), (2, 1), Share(holders=2, holder=0))
    with pytest.raises(InputError, match=r"'w' must have pieces .* lacks \[2, 2\] at \[2, 0\]"):
        save_checkpoint(tmp_path, 1, {"w": torch.zeros(4)}, holdings={"w": half})
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_saved_and_loaded_with_pieces(tmp_path: Path) -> None:
    # one rank has all of a weight, in another order of dimensions than the one that reads it
    weight = numbered((2, 3)).t()
    save_checkpoint(tmp_path, 1, {"w": weight})
    found = find_checkpoint(tmp_path, pytest.fail)
    assert found is not None
    target = torch.zeros(3, 2)
    load_checkpoint(found, {"w": target})
    assert torch.equal(target, weight)
    row = torch.zeros(3)
    second = hold_share((3, 2), weight.stride(), Share(holders=2, holder=1))
    load_checkpoint(found, {"w": row}, holdings={"w": second})
    assert row.tolist() == [3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offset": [0, 1]}, "must lie in the tensor"),
        ({"offset": [0]}, "must lie in the tensor"),
        ({"shape": [3, 2]}, r"lacks \[1, 2\] at \[3, 0\]"),
    ],
)
def test_pieces_that_make_up_no_tensor_are_refused(change: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {"file": "f", "key": "w", "offset": [0, 0], "shape": [4, 2]}
    piece = SavedPiece(**{**fields, **change})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        check_pieces("w", SavedTensor("float32", [4, 2], [piece]))
    with pytest.raises(InputError, match="must have pieces that make up all of it"):
        check_pieces("w", SavedTensor("float32", [4, 2], []))
