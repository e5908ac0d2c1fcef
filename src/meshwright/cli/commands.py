"""Words of a command line, taken apart."""

from collections.abc import Iterator, Sequence


def without(words: Sequence[str], *options: str) -> Iterator[str]:
    """The words of a command without `--commands` and some options, which have a value each."""
    left = iter(words)
    for word in left:
        if word in options:
            next(left)
        elif word != "--commands" and word.partition("=")[0] not in options:
            yield word
