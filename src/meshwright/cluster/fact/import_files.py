"""Imports a cluster from what programs and services print of it: read, merge, draw."""

from collections.abc import Sequence
from pathlib import Path

from meshwright.cluster.by_host import read_devices, read_nics
from meshwright.cluster.fact.draw import Assumed, Drawn, draw
from meshwright.cluster.fact.grid import draw_dimensions
from meshwright.cluster.fact.merge import merge
from meshwright.cluster.fact.read import Source, read_source
from meshwright.errors import InputError

MAX_FILES = 65_536


def import_files(
    files: Sequence[str | Path],
    *,
    devices: str | None = None,
    nics: str | None = None,
    name: str = "imported",
) -> Drawn:
    """The cluster of files, each a path or HOST=PATH; `devices` ('8 x h100') and `nics` ('8 x 400
    Gb/s') hold for hosts of which no file says these."""
    if not 1 <= len(files) <= MAX_FILES:
        raise InputError(f"files: must be from 1 to {MAX_FILES:,}, got {len(files):,}")
    return draw_sources([read_source(each) for each in files], devices, nics, name)


def draw_sources(
    sources: Sequence[Source], devices: str | None, nics: str | None, name: str
) -> Drawn:
    """The cluster of files that have been read."""
    count, kind = read_devices(devices, "devices", {}) if devices is not None else (None, None)
    num_nics, rate = read_nics(nics, "nics")
    grids = [source for source in sources if source.facts.dimensions]
    if grids and len(sources) > 1:
        raise InputError(f"{grids[0].where}: must be the only file, as it is a whole network")
    if grids:
        if kind is None:
            raise InputError(
                f"{grids[0].where}: does not say what its devices are; --devices does, e.g. 'h100'"
            )
        taken = (f"{kind.name}: figures of the catalogue",)
        cluster = draw_dimensions(grids[0].facts.dimensions, kind, name)
        return Drawn(cluster=cluster, taken=taken, doubts=())
    known = merge(sources)
    if not known.hosts:
        raise InputError(f"{sources[0].where}: must say something of hosts")
    tables = [table for source in sources for table in source.facts.tables]
    assumed = Assumed(num_devices=count, type=kind, num_nics=num_nics, nic_bytes_per_second=rate)
    return draw(known, tables, name=name, assumed=assumed)
