"""Whether the nodes of a stage have ways that fit time and memory together: an exact knapsack.

One item is taken of each class; items have seconds and bytes. The fastest and the leanest choice,
and those that a price of memory gives (the Lagrangian dual), settle most questions. What is left is
settled by lists of choices of which none is both slower and larger than another, class by class;
what cannot end within the limits, by the price's bound too, is dropped. Classes that save equally
much make the lists no longer than there are classes, which branching would not see.
"""

from typing import Any

from meshwright.compiled import inlined, outlined

_MOST_PRICES = 64
_ROUNDING = 1e-12
"""Relative: sums that differ by less are taken for equal."""

FITS, FITS_NOT, NO_ROOM = 1, 0, -1


@outlined
def find_fit(
    count: Any, start: Any, seconds: Any, held: Any, limit: Any, memory: Any, rest: Any, lists: Any
) -> Any:
    """Class c is items `start[c]:start[c + 1]`. `rest` has four columns of `count` + 1 numbers,
    `lists` three pairs of rows; `NO_ROOM` where these are too short."""
    fast_seconds, fast_held, lean_seconds, lean_held = 0.0, 0.0, 0.0, 0.0
    for c in range(count):
        fast, lean = start[c], start[c]
        for i in range(start[c] + 1, start[c + 1]):
            if _is_before(seconds[i], held[i], seconds[fast], held[fast]):
                fast = i
            if _is_before(held[i], seconds[i], held[lean], seconds[lean]):
                lean = i
        fast_seconds += seconds[fast]
        fast_held += held[fast]
        lean_seconds += seconds[lean]
        lean_held += held[lean]
    if fast_seconds > limit or lean_held > memory:
        return FITS_NOT
    if fast_held <= memory or lean_seconds <= limit:
        return FITS
    price = 0.0
    for _ in range(_MOST_PRICES):
        price = (lean_seconds - fast_seconds) / (fast_held - lean_held)
        here_seconds, here_held = _choose(count, start, seconds, held, price)
        value = here_seconds + price * here_held
        if value * (1 - _ROUNDING) - price * memory > limit:
            return FITS_NOT
        if here_held <= memory and here_seconds <= limit:
            return FITS
        if value >= (fast_seconds + price * fast_held) * (1 - _ROUNDING):
            break
        if here_held <= memory:
            lean_seconds, lean_held = here_seconds, here_held
        else:
            fast_seconds, fast_held = here_seconds, here_held
    return _merge_lists(count, start, seconds, held, limit, memory, price, rest, lists)


@inlined
def _is_before(first: Any, second: Any, other_first: Any, other_second: Any) -> Any:
    return first < other_first or (first == other_first and second < other_second)


@inlined
def _choose(count: Any, start: Any, seconds: Any, held: Any, price: Any) -> Any:
    """Seconds and bytes of the choice that is cheapest at a price of memory."""
    total_seconds, total_held = 0.0, 0.0
    for c in range(count):
        best = start[c]
        for i in range(start[c] + 1, start[c + 1]):
            if seconds[i] + price * held[i] < seconds[best] + price * held[best]:
                best = i
        total_seconds += seconds[best]
        total_held += held[best]
    return total_seconds, total_held


@inlined
def _merge_lists(
    count: Any, start: Any, seconds: Any, held: Any, limit: Any, memory: Any, price: Any, rest: Any,
    lists: Any,
) -> Any:  # fmt: skip
    _sum_rests(count, start, seconds, held, price, rest)
    length = 1
    now, done, free = 0, 2, 4  # rows of seconds; those of bytes are next to them
    lists[now, 0], lists[now + 1, 0] = 0.0, 0.0
    for c in range(count):
        size = 0
        for i in range(start[c], start[c + 1]):
            size = _merge_item(
                seconds[i], held[i], c + 1, limit, memory, price, rest, lists, now, length, done,
                size, free,
            )  # fmt: skip
            if size < 0:
                return FITS if size == -2 else NO_ROOM
            done, free = free, done
        if size == 0:
            return FITS_NOT
        length = size
        now, done = done, now
    return FITS


# Columns of what the classes from c on take at least: seconds, bytes, both at the price; and the
# seconds of their leanest choice.
_LEAST_SECONDS, _LEAST_HELD, _LEAST_PRICED, _LEAN_SECONDS = 0, 1, 2, 3


@inlined
def _sum_rests(count: Any, start: Any, seconds: Any, held: Any, price: Any, rest: Any) -> None:
    for column in range(4):
        rest[column, count] = 0.0
    for c in range(count - 1, -1, -1):
        fast, lean, cheap = start[c], start[c], start[c]
        for i in range(start[c] + 1, start[c + 1]):
            if seconds[i] < seconds[fast]:
                fast = i
            if _is_before(held[i], seconds[i], held[lean], seconds[lean]):
                lean = i
            if seconds[i] + price * held[i] < seconds[cheap] + price * held[cheap]:
                cheap = i
        rest[_LEAST_SECONDS, c] = rest[_LEAST_SECONDS, c + 1] + seconds[fast]
        rest[_LEAST_HELD, c] = rest[_LEAST_HELD, c + 1] + held[lean]
        priced = (seconds[cheap] + price * held[cheap]) * (1 - _ROUNDING)
        rest[_LEAST_PRICED, c] = rest[_LEAST_PRICED, c + 1] + priced
        rest[_LEAN_SECONDS, c] = rest[_LEAN_SECONDS, c + 1] + seconds[lean]


@outlined
def _merge_item(
    more_seconds: Any, more_held: Any, after: Any, limit: Any, memory: Any, price: Any, rest: Any,
    lists: Any, now: Any, length: Any, done: Any, size: Any, free: Any,
) -> Any:  # fmt: skip
    """Merge list `done` with list `now` and one item more into list `free`, both ascending in
    seconds; returns its length, -1 without room, -2 where something fits for sure."""
    a, b, at = 0, 0, 0
    last = memory + memory + 1.0
    while a < length or b < size:
        takes_new = b >= size or (
            a < length
            and _is_before(
                lists[now, a] + more_seconds,
                lists[now + 1, a] + more_held,
                lists[done, b],
                lists[done + 1, b],
            )
        )
        if takes_new:
            now_seconds, now_held = lists[now, a] + more_seconds, lists[now + 1, a] + more_held
            a += 1
            if (
                now_held + rest[_LEAST_HELD, after] > memory
                or now_seconds + rest[_LEAST_SECONDS, after] > limit
                or now_seconds + price * now_held + rest[_LEAST_PRICED, after]
                > limit + price * memory * (1 + _ROUNDING)
            ):
                continue
            if now_seconds + rest[_LEAN_SECONDS, after] <= limit:
                return -2
        else:
            now_seconds, now_held = lists[done, b], lists[done + 1, b]
            b += 1
        if now_held >= last:
            continue
        if at == lists.shape[1]:
            return -1
        lists[free, at], lists[free + 1, at] = now_seconds, now_held
        last = now_held
        at += 1
    return at
