"""A plan in one line for people: its degrees, schedule, ZeRO and recomputation."""

from collections.abc import Iterable, Sequence

from meshwright.plan.part import Keys, Part, Recompute, Schedule, ScheduleKind


def describe_parts(parts: Sequence[Part], schedule: Schedule | None) -> str:
    """Such as "tensor 8, pipeline 16, data 8, 1f1b x 512, zero 1, recompute selective"; parts that
    are no stages of a pipeline are "parts 3".

    What differs between parts is a range of numbers or a list of words; what no part has is left
    out, but tensor, pipeline and data never are.
    """
    kind = None if schedule is None else schedule.kind
    texts = [
        f"tensor {span(part.tensor for part in parts)}",
        *_width("context", parts),
        *_describe_keys(parts),
        *_width("expert", parts),
        f"{'pipeline' if schedule or len(parts) == 1 else 'parts'} {_describe_stages(parts, kind)}",
        f"data {span(part.num_replicas for part in parts)}",
    ]
    if schedule is not None:
        texts.append(f"{schedule.kind} x {schedule.microbatches}")
    if any(part.zero for part in parts):
        texts.append(f"zero {span(part.zero for part in parts)}")
    if any(part.recompute is not Recompute.NONE for part in parts):
        texts.append(f"recompute {words(part.recompute for part in parts)}")
    return ", ".join(texts)


def span(numbers: Iterable[int]) -> str:
    """8, or 2-8 for numbers that differ."""
    known = sorted(set(numbers))
    return str(known[0]) if len(known) == 1 else f"{known[0]}-{known[-1]}"


def words(values: Iterable[str]) -> str:
    """Each value once, in the order in which they first come."""
    return "/".join(dict.fromkeys(map(str, values)))


def num_slots(parts: Sequence[Part]) -> int:
    """How many different sets of devices the parts run on: stages, or fewer if interleaved."""
    return len({part.devices for part in parts})


def _width(name: str, parts: Sequence[Part]) -> list[str]:
    if all(getattr(part, name) == 1 for part in parts):
        return []
    return [f"{name} {span(getattr(part, name) for part in parts)}"]


def _describe_keys(parts: Sequence[Part]) -> list[str]:
    """How context teams get at keys, where some do not gather them."""
    of_teams = [part.keys for part in parts if part.context > 1]
    return [] if {*of_teams} <= {Keys.GATHERED} else [f"keys {words(of_teams)}"]


def _describe_stages(parts: Sequence[Part], kind: ScheduleKind | None) -> str:
    """Sets of devices, and how many stages each has where it is several."""
    slots = num_slots(parts)
    if kind is ScheduleKind.INTERLEAVED and len(parts) > slots:
        return f"{slots} x {-(-len(parts) // slots)} chunks"
    return str(len(parts))
