"""Who holds up whom: from what ranks say of themselves to the rank that is hung.

Pure. Knows nothing of processes, threads and stores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.execute.fault import name_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What is known of one rank."""

    doing: str
    """What it began last."""
    waits_for: tuple[int, ...] = ()
    """The ranks without which it cannot go on."""
    idle_seconds: float = 0.0
    """How long its main thread has begun nothing, as it says itself."""
    silent_seconds: float = 0.0
    """How long it has said nothing new, as its reader knows: a stopped process says nothing."""
    has_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Why a rank waits in vain."""

    ranks: tuple[int, ...]
    """The hung ones, or those that wait for each other."""
    message: str
    seconds: float
    """How long they have made no progress, or have said nothing."""


def find_stall(
    rank: int, posts: Mapping[int, Post], devices: Sequence[str], stall_seconds: float
) -> Stall | None:
    """Why `rank` waits, if it is in vain; `posts` has all ranks that it waits for, also indirectly.

    In vain: it has waited for `stall_seconds`, and among those it waits for is one that is hung
    (it waits for nobody and has begun nothing for as long, or it has been silent for half of that),
    or all of them have waited as long, for each other. A rank that makes progress holds up nobody,
    however long it takes.
    """
    own = posts[rank]
    if not own.waits_for or own.idle_seconds < stall_seconds:
        return None
    reached = find_reached(rank, posts, stall_seconds)
    hung = [each for each in reached if each != rank and _is_hung(posts[each], stall_seconds)]
    if hung:
        return _describe_hung(hung, rank, reached, posts, devices)
    if all(posts[each].waits_for and posts[each].idle_seconds >= stall_seconds for each in reached):
        return _describe_circle(reached, posts, devices, stall_seconds)
    return None


def find_reached(rank: int, posts: Mapping[int, Post], stall_seconds: float) -> list[int]:
    """`rank` and those for which it waits, directly or not, as far as `posts` knows; in order.

    What a silent rank waited for when it was last heard has no meaning.
    """
    reached = [rank]
    for each in reached:  # grows as it goes
        post = posts.get(each)
        if post is None or (each != rank and _is_silent(post, stall_seconds)):
            continue
        reached += [other for other in dict.fromkeys(post.waits_for) if other not in reached]
    return reached


def _is_silent(post: Post, stall_seconds: float) -> bool:
    return post.silent_seconds >= stall_seconds / 2


def _is_hung(post: Post, stall_seconds: float) -> bool:
    is_idle = not post.waits_for and post.idle_seconds >= stall_seconds
    return is_idle or _is_silent(post, stall_seconds)


def _describe_hung(
    hung: Sequence[int],
    rank: int,
    reached: Sequence[int],
    posts: Mapping[int, Post],
    devices: Sequence[str],
) -> Stall:
    texts = []
    for each in hung:
        post = posts[each]
        name = name_rank(each, devices[each])
        waiting = [other for other in reached if each in posts[other].waits_for and other != each]
        waiter = rank if rank in waiting else waiting[0]
        waits = f"{name_rank(waiter, devices[waiter])} waits for it at {posts[waiter].doing}"
        if post.has_ended:
            texts.append(f"{name} has ended, but {waits}")
        elif post.idle_seconds >= post.silent_seconds:
            idle = f"no progress for {post.idle_seconds:.0f} s at {post.doing}"
            texts.append(f"{name} is hung: {idle}; {waits}")
        else:
            silent = f"no sign of life for {post.silent_seconds:.0f} s, last seen at {post.doing}"
            texts.append(f"{name} is hung: {silent}; {waits}")
    seconds = max(max(posts[each].idle_seconds, posts[each].silent_seconds) for each in hung)
    return Stall(ranks=tuple(hung), message="; ".join(texts), seconds=seconds)


def _describe_circle(
    reached: Sequence[int],
    posts: Mapping[int, Post],
    devices: Sequence[str],
    stall_seconds: float,
) -> Stall:
    """All wait and none is hung, so some wait in a circle: those that can reach themselves."""
    circle = [
        each
        for each in reached
        if any(each in find_reached(other, posts, stall_seconds) for other in posts[each].waits_for)
    ]
    texts = [f"{name_rank(each, devices[each])} at {posts[each].doing}" for each in circle]
    idle = min(posts[each].idle_seconds for each in circle)
    message = f"{', '.join(texts)} wait for each other: no progress for {idle:.0f} s"
    return Stall(ranks=tuple(circle), message=message, seconds=idle)
