"""Reads logs of nccl-tests and rccl-tests, as text or JSON (-J): tables of measured times.

Times out of place count, as the columns come first. Where an old log does not say which collective
it measures, columns and bus bandwidth tell all-reduce, reduce-scatter and broadcast apart; the rest
is read from the file's name.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from meshwright.cluster.fact.fact import (
    MAX_HOST_DEVICES,
    DeviceFact,
    Facts,
    HostFact,
    TableFact,
    refuse,
)
from meshwright.errors import InputError, quoted

FORMAT = "nccl-tests"
MAX_ROWS = 4096
# What the programs are called, and what tables call it. A reduce has no place in plans.
_COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "sendrecv": "shift",
}  # fmt: skip
_NAMED = re.compile(r"(" + "|".join(_COLLECTIVES) + r"|reduce|gather|scatter|hypercube)_perf")
_FILE_NAMES = {
    r"all_?reduce": "all_reduce", r"all_?gather": "all_gather",
    r"reduce_?scatter": "reduce_scatter", r"all_?to_?all": "all_to_all",
    r"broadcast|bcast": "broadcast", r"send_?recv": "shift",
}  # fmt: skip
_RANK = re.compile(
    r"#\s+Rank\s+([0-9]+)\s.*?Pid\s+[0-9]+ on\s+(\S+) device\s+[0-9]+ \[[^]]*\] (.*\S)\s*"
)
_PREFIX = re.compile(r"^\s*(?:\[[0-9,]+\]<std(?:out|err)>|[0-9]{1,6}):\s?")
"""What mpirun and srun put before each line."""
_TYPES = (
    r"(?:u?int8|char|u?int32|u?int64|half|float|double|bfloat16|f8e4m3|f8e5m2|fp8_e4m3|fp8_e5m2)"
)
_ROW = re.compile(
    r"\s*([0-9]{1,15})\s+[0-9]+\s+" + _TYPES + r"\s+(\S+ +)?(?:-?[0-9]+ +)?"
    r"([0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?)\s+([0-9.]+)\s+([0-9.]+)(?:\s+\S+){0,8}\s*"
)


@dataclass(slots=True)
class _Log:
    """What has been read of one test."""

    collective: str = ""
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Host and product of each rank."""
    times: dict[float, float] = field(default_factory=dict)
    factor: float = 0.0
    """Bus bandwidth over bandwidth, of the largest message."""
    is_sum: bool = False
    line: int = 1


def is_nccl_tests(text: str) -> bool:
    """Whether a text is such a log."""
    start = text[:262144]
    if start.lstrip().startswith("{"):
        return '"results"' in start and '"bus_bw"' in text
    return bool(re.search(r"size\s+count\s+type", start)) and "busbw" in start


def parse_nccl_tests(text: str, where: str = "") -> Facts:
    """The tables of a log, one for each test in it."""
    logs = _read_json(text) if text.lstrip().startswith("{") else _read_text(text)
    tables = tuple(table for log in logs if (table := _make_table(log, where)) is not None)
    if not tables:
        raise InputError("must have two or more measured sizes of a collective that plans use")
    ranks = max((log.ranks for log in logs if log.times), key=len)
    return Facts(tables=tables, hosts=_find_hosts(ranks))


def _find_hosts(ranks: dict[int, tuple[str, str]]) -> tuple[HostFact, ...]:
    """The hosts that ranks are on; the only one has no name where its log gives it none."""
    devices: dict[str, list[DeviceFact]] = {}
    for _, (host, product) in sorted(ranks.items()):
        devices.setdefault(host, []).append(DeviceFact(product=product))
    return tuple(
        HostFact(
            name="" if host in ("localhost", "") and len(devices) == 1 else host,
            devices=tuple(each),
            num_devices=len(each),
        )
        for host, each in devices.items()
        if len(each) <= MAX_HOST_DEVICES
    )


def _read_text(text: str) -> list[_Log]:
    logs = [_Log()]
    for number, line in enumerate(text.split("\n"), start=1):
        line = _PREFIX.sub("", line)
        if match := _NAMED.search(line):
            if logs[-1].times:
                logs.append(_Log())
            logs[-1].collective = match[1]
        elif match := _RANK.fullmatch(line):
            if logs[-1].times:
                logs.append(_Log())
            if len(logs[-1].ranks) >= 1 << 17:
                raise refuse(number, "be a log of fewer ranks", line)
            logs[-1].ranks[int(match[1][:9])] = match[2], match[3]
        elif re.match(r"\s*[0-9]+\s+[0-9]+\s+" + _TYPES + r"\s", line):
            _read_row(logs[-1], line, number)
    return logs


def _read_row(log: _Log, line: str, number: int) -> None:
    match = _ROW.fullmatch(line)
    if match is None:
        raise refuse(number, "have a size, a count, a type, a time and two bandwidths", line)
    size, seconds = float(match[1]), float(match[3]) * 1e-6
    log.line = number
    log.is_sum = (match[2] or "none").strip() not in ("none", "")
    if float(match[4] if _is_number(match[4]) else 0) > 0 and _is_number(match[5]):
        log.factor = float(match[5]) / float(match[4])
    if size > 0 and seconds > 0:
        log.times[size] = min(seconds, log.times.get(size, seconds))
    if len(log.times) > MAX_ROWS:
        raise refuse(number, f"have at most {MAX_ROWS:,} sizes", line)


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]+(\.[0-9]+)?", text))


def _read_json(text: str) -> list[_Log]:
    try:
        read: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(getattr(error, "lineno", 1), "be JSON", str(error)) from None
    log = _Log()
    try:
        log.collective = str(read.get("test", read.get("config", {}).get("test", "")))
        match = _NAMED.search(str(read.get("args", "")) + " " + log.collective + "_perf")
        log.collective = match[1] if match else log.collective
        for place, rank in enumerate(read.get("ranks", read.get("devices", []))):
            name = str(rank.get("device_name", rank.get("name", "")))
            log.ranks[place] = str(rank.get("hostname", rank.get("host", ""))), name
        for row in read["results"][:MAX_ROWS]:
            size, taken = float(row["size"]), float(row["out_of_place"]["time"]) * 1e-6
            if 0 < size < 1e15 and 0 < taken < 1e9:
                log.times[size] = taken
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"must be the JSON of nccl-tests, has no {quoted(str(error))}") from None
    return [log]


def _make_table(log: _Log, where: str) -> TableFact | None:
    if len(log.times) < 2:
        return None
    count = len(log.ranks)
    if count < 2:
        raise refuse(log.line, "come after the list of two or more ranks", f"{count:,}")
    products = sorted({product for _, product in log.ranks.values()})
    if len(products) > 1:
        raise InputError(f"ranks must have devices of one type, got {', '.join(products)[:80]}")
    if log.collective and log.collective not in {*_COLLECTIVES, *_COLLECTIVES.values()}:
        return None
    collective = _COLLECTIVES.get(log.collective, log.collective) or _guess(log, count, where)
    sizes = sorted(log.times)
    return TableFact(
        collective=collective,
        product=products[0],
        num_devices=count,
        num_hosts=len({host for host, _ in log.ranks.values()}),
        sizes_bytes=tuple(sizes),
        seconds=tuple(log.times[size] for size in sizes),
    )


def _guess(log: _Log, count: int, where: str) -> str:
    """Which collective a log is of that does not say so."""
    if log.is_sum and abs(log.factor - 2 * (count - 1) / count) < 0.05 and count > 2:
        return "all_reduce"
    if log.is_sum and abs(log.factor - (count - 1) / count) < 0.05 and count > 2:
        return "reduce_scatter"
    name = where.rsplit("/", 1)[-1].lower()
    for pattern, collective in _FILE_NAMES.items():
        if re.search(pattern, name):
            return collective
    rule = "say which collective it is of, in itself or by the file's name"
    raise refuse(log.line, rule, name)
