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
from meshwright.execute.holding import (  # noqa: E402
    choose_parts,
    join_parts,
    name_parts,
    read_parts,
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
    Box,
    Holding,
    Piece,
    box_piece,
    cut_boxes,
    find_overlaps,
    shard_piece,
    storage_order,
    subtract,
    whole_holding,
)

Shape = tuple[int, ...]


def indices(piece: Piece) -> list[Shape]:
    """Of its numbers, in their order: by brute force."""
    box = piece.box
    ranges = [range(box.offset[d], box.offset[d] + box.shape[d]) for d in piece.order]
    found = []
    for index in product(*ranges):
        full = dict(zip(piece.order, index, strict=True))
        found.append(tuple(full[d] for d in range(len(index))))
    return found[piece.start : piece.stop]


def numbered(shape: Shape) -> Tensor:
    made: Tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    return made


def data_of(whole: Tensor, piece: Piece) -> Tensor:
    """What somebody with this piece has: a row, or all of a box."""
    if piece.is_box:
        outer = Box((0,) * whole.dim(), tuple(whole.shape))
        return whole[piece.box.within(outer)].clone()
    numbers = [float(whole[index]) for index in indices(piece)]
    row: Tensor = torch.tensor(numbers, dtype=whole.dtype)
    return row


@st.composite
def pieces(draw: st.DrawFn, shape: Shape) -> Piece:
    offset = tuple(draw(st.integers(0, size - 1)) for size in shape)
    extent = tuple(draw(st.integers(1, size - at)) for at, size in zip(offset, shape, strict=True))
    box = Box(offset, extent)
    start = draw(st.integers(0, box.size - 1))
    stop = draw(st.integers(start + 1, box.size))
    order = draw(st.permutations(range(len(shape))))
    return Piece(box=box, order=tuple(order), start=start, stop=stop)


SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@st.composite
def divisions(draw: st.DrawFn, shape: Shape) -> list[Piece]:
    """A tensor cut into boxes along one dimension, and each of them into shards."""
    dim = draw(st.integers(0, len(shape) - 1)) if shape else 0
    ways = draw(st.integers(1, shape[dim])) if shape else 1
    made = []
    for way in range(ways):
        offset, extent = [0] * len(shape), list(shape)
        if shape:
            offset[dim] = way * shape[dim] // ways
            extent[dim] = (way + 1) * shape[dim] // ways - offset[dim]
        box = Box(tuple(offset), tuple(extent))
        order = draw(st.permutations(range(len(shape))))
        stride = [0] * len(shape)
        step = 1
        for each in reversed(order):
            stride[each], step = step, step * box.shape[each]
        holders = draw(st.integers(1, 4))
        made += [shard_piece(box, stride, holders, holder) for holder in range(holders)]
    return made


def test_the_middle_of_a_matrix_is_three_boxes() -> None:
    # numbers 2 to 10 of 4 x 3: (0, 2), rows 1 and 2, (3, 0) and (3, 1)
    piece = Piece(box=Box((0, 0), (4, 3)), order=(0, 1), start=2, stop=11)
    assert list(cut_boxes(piece)) == [
        (Box((0, 2), (1, 1)), 0),
        (Box((1, 0), (2, 3)), 1),
        (Box((3, 0), (1, 2)), 7),
    ]


def test_a_hole_in_the_middle_leaves_four_boxes() -> None:
    left = list(subtract(Box((0, 0), (3, 3)), Box((1, 1), (1, 1))))
    assert left == [
        Box((0, 0), (1, 3)), Box((2, 0), (1, 3)), Box((1, 0), (1, 1)), Box((1, 2), (1, 1)),
    ]  # fmt: skip


def test_storage_order_is_from_the_longest_stride() -> None:
    assert storage_order(torch.zeros(2, 3, 4).permute(2, 0, 1).stride()) == (1, 2, 0)


@given(SHAPES.flatmap(pieces))
def test_boxes_of_a_piece_are_its_numbers_in_order(piece: Piece) -> None:
    found = list(cut_boxes(piece))
    assert len(found) <= max(1, 2 * len(piece.order) - 1)
    listed: list[Shape] = []
    for box, at in found:
        assert at == len(listed)
        listed += indices(Piece(box=box, order=piece.order, start=0, stop=box.size))
    assert listed == indices(piece)


@given(SHAPES.flatmap(lambda shape: st.tuples(pieces(shape), st.lists(pieces(shape), max_size=4))))
def test_every_number_is_found_once_or_missing(case: tuple[Piece, list[Piece]]) -> None:
    wanted, given_pieces = case
    overlaps, missing = find_overlaps(wanted, given_pieces)
    boxes = [*(each.box for each in overlaps), *missing]
    listed = [index for box in boxes for index in indices(box_piece(box.shape, box.offset))]
    assert sorted(listed) == sorted(indices(wanted))
    there = {index for each in given_pieces for index in indices(each)}
    absent = [index for box in missing for index in indices(box_piece(box.shape, box.offset))]
    assert set(absent) == set(indices(wanted)) - there


def save(folder: Path, states: Sequence[dict[str, tuple[Tensor, Holding]]]) -> Manifest:
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
        lambda shape: st.tuples(
            st.just(shape),
            divisions(shape),
            st.lists(pieces(shape), min_size=1, max_size=3),
        )
    ),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    st.booleans(),
)
def test_any_piece_is_read_from_any_pieces(
    case: tuple[Shape, list[Piece], list[Piece]], dtype: torch_dtype, is_twice: bool
) -> None:
    shape, written, wanted = case
    whole = numbered(shape).to(dtype)
    states = [
        {"w": (data_of(whole, piece), Holding(shape=shape, piece=piece))} for piece in written
    ] * (1 + is_twice)
    with TemporaryDirectory() as name:
        folder = Path(name)
        manifest = save(folder, states)
        saved = manifest.tensors["w"]
        sizes = [each.piece.size for each in saved.pieces]
        assert sum(sizes) == whole.numel()  # replicas write each piece once
        for piece in (*wanted, box_piece(shape)):
            target = torch.zeros_like(data_of(whole, piece))
            holding = Holding(shape=shape, piece=piece)
            read_parts(folder, manifest.tensors, {"w": target}, {"w": holding}, lambda: None)
            assert torch.equal(target, data_of(whole, piece))


def test_a_rank_reads_only_the_bytes_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = numbered((8, 6))
    halves = [box_piece((4, 6)), box_piece((4, 6), (4, 0))]
    states = [{"w": (data_of(whole, each), Holding(shape=(8, 6), piece=each))} for each in halves]
    manifest = save(tmp_path, states)
    seen: list[tuple[str, Shape]] = []
    real = tensor_file._read_extract

    def spy(file: object, path: Path, extract: tensor_file.Extract) -> Tensor:
        part = real(file, path, extract)
        seen.append((path.name, tuple(part.shape)))
        return part

    monkeypatch.setattr(tensor_file, "_read_extract", spy)
    # numbers 20 to 27 of a row: (3, 2) to (3, 5) of the first half, (4, 0) to (4, 3) of the other
    piece = Piece(box=Box((0, 0), (8, 6)), order=(0, 1), start=20, stop=28)
    target = torch.zeros(8)
    holding = Holding(shape=(8, 6), piece=piece)
    read_parts(tmp_path, manifest.tensors, {"w": target}, {"w": holding}, lambda: None)
    assert target.tolist() == [float(each) for each in range(20, 28)]
    assert seen == [("rank-00000.safetensors", (1, 4)), ("rank-00001.safetensors", (1, 4))]


def test_columns_are_read_from_a_range_of_rows() -> None:
    shards = [shard_piece(Box((0, 0), (4, 3)), (3, 1), 2, holder) for holder in range(2)]
    overlaps, missing = find_overlaps(box_piece((4, 1), (0, 2)), shards)
    assert not missing
    assert [each.box for each in overlaps] == [Box((0, 2), (2, 1)), Box((2, 2), (2, 1))]


def test_whoever_has_all_of_a_tensor_writes_it(tmp_path: Path) -> None:
    whole = numbered((4, 2))
    half = shard_piece(Box((0, 0), (4, 2)), (2, 1), 2, 0)
    states = [
        {"w": (data_of(whole, half), Holding(shape=(4, 2), piece=half))},
        {"w": (whole, whole_holding((4, 2)))},
    ]
    manifest = save(tmp_path, states)
    assert manifest.version == 1
    assert [each.file for each in manifest.tensors["w"].pieces] == ["rank-00001.safetensors"]


def test_a_tensor_of_which_nobody_has_a_part_is_not_saved(tmp_path: Path) -> None:
    half = shard_piece(Box((0, 0), (4, 2)), (2, 1), 2, 0)
    held = Holding(shape=(4, 2), piece=half)
    with pytest.raises(InputError, match=r"'w' must have pieces .* lacks \[2, 2\] at \[2, 0\]"):
        save_checkpoint(tmp_path, 1, {"w": torch.zeros(4)}, holdings={"w": held})
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_saved_and_loaded_with_pieces(tmp_path: Path) -> None:
    # one rank, which has its weights as a row: its shard of one holder
    weight = numbered((2, 3)).t()
    piece = shard_piece(Box((0, 0), (3, 2)), weight.stride(), 1, 0)
    held = {"w": Holding(shape=(3, 2), piece=piece)}
    save_checkpoint(tmp_path, 1, {"w": torch.arange(6.0)}, holdings=held)
    found = find_checkpoint(tmp_path, pytest.fail)
    assert found is not None
    target = torch.zeros(3, 2)
    load_checkpoint(found, {"w": target})
    assert torch.equal(target, weight)
    row = torch.zeros(3)
    second = shard_piece(Box((0, 0), (3, 2)), weight.stride(), 2, 1)
    load_checkpoint(found, {"w": row}, holdings={"w": Holding(shape=(3, 2), piece=second)})
    assert row.tolist() == [3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offset": [0, 1]}, "must lie in the tensor"),
        ({"offset": [0]}, "must lie in the tensor"),
        ({"order": [0, 0]}, "must lie in the tensor"),
        ({"order": [0, 1], "start": 2, "stop": 9}, "must lie in the tensor"),
        ({"order": [0, 1], "start": 3, "stop": 2}, "must lie in the tensor"),
        ({"order": [1, 0], "start": 0, "stop": 7}, r"lacks \[1, 1\] at \[3, 1\]"),
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
