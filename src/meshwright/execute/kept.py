"""Which checkpoints a folder has, by their names. Knows nothing of torch."""

import re
from pathlib import Path

_NAME = re.compile(r"step-(\d{8,})")


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders that are named like checkpoints, in the order of steps."""
    if not folder.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matches if match)
