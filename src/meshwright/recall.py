"""Answers of earlier searches on disk, found again by everything that they depend on.

A key has what the graph and the cluster hold, what was asked but for the time, and a digest of the
program's sources: whatever differs is another search, never a stale answer. A longer budget goes on
from what is kept. Files may be deleted at any time.
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from meshwright.cluster.document import encode_explicit
from meshwright.errors import InputError, os_errors
from meshwright.files import decode_json, read_bytes, write_bytes
from meshwright.graph.file import encode_columns
from meshwright.plan.answer import Answer, RunnerUp, Stop
from meshwright.plan.plan import Plan
from meshwright.plan.record import RequestRecord
from meshwright.plan.request import Request
from meshwright.planned import ANSWER_FILE, PLAN_FILE, read_answer_of
from meshwright.search.check import check_request
from meshwright.search.incumbent import is_proved
from meshwright.search.portfolio import Report, answer_request
from meshwright.units import format_seconds
from meshwright.zoo.cache import PACKAGE, cache_folder, digest_files

SWITCH = "MESHWRIGHT_ANSWERS"
"""Set to "no", nothing is kept and nothing found."""
_FOLDER, _OTHERS_FILE = "answers", "runner-ups.json"
_MOST = 300
"""Answers that are kept; the oldest go."""
_NEAR_SHARE = 0.4
"""Of the time that a longer budget adds: for searches near the plan that is kept."""


class _RunnerUp(msgspec.Struct):
    step_seconds: float
    description: str
    plan: str
    """The name of its file."""


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """A folder of answers, for one state of the code."""

    folder: Path
    code: str
    """A digest of the sources."""

    def path(self, request: Request) -> Path:
        """Where the answer is, or will be."""
        record: dict[str, Any] = msgspec.to_builtins(RequestRecord.of_request(request))
        del record["budget_seconds"]
        cluster = request.cluster
        own: Any = {each.name: getattr(cluster, each.name) for each in fields(cluster)}
        digest = hashlib.sha256(encode_columns(request.graph.columns()))
        digest.update(
            msgspec.json.encode([encode_explicit(own), record, self.code], order="sorted")
        )
        return self.folder / digest.hexdigest()[:32]

    def read(self, request: Request) -> Answer | None:
        """What is kept; None where nothing is. A damaged folder is an `InputError`."""
        path = self.path(request)
        if not (path / ANSWER_FILE).is_file():
            return None
        answer = read_answer_of(path, request)
        others = decode_json(read_bytes(path / _OTHERS_FILE), tuple[_RunnerUp, ...], str(path))
        runner_ups = tuple(
            RunnerUp(
                plan=Plan.load(path / Path(each.plan).name),
                step_seconds=each.step_seconds,
                description=each.description,
            )
            for each in others
        )
        return replace(answer, runner_ups=runner_ups)

    def found_at(self, request: Request) -> str:
        """The day of the answer."""
        seconds = (self.path(request) / ANSWER_FILE).stat().st_mtime
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")

    def write(self, answer: Answer) -> None:
        """Keep an answer, the file that says it is there last."""
        assert answer.request is not None, "a search says what it was asked"
        path = self.path(answer.request)
        with os_errors(f"{path}: cannot be made"):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True, exist_ok=True)
            self._drop_oldest()
        others = []
        for number, each in enumerate(answer.runner_ups):
            name = f"runner-up-{number}.json"
            each.plan.save(path / name)
            others.append(_RunnerUp(each.step_seconds, each.description, name))
        write_bytes(path / _OTHERS_FILE, msgspec.json.encode(others))
        if answer.plan is not None:
            answer.plan.save(path / PLAN_FILE)
        told = answer.to_dict(plan=None if answer.plan is None else PLAN_FILE)
        write_bytes(path / ANSWER_FILE, msgspec.json.encode(told))

    def _drop_oldest(self) -> None:
        known = sorted(self.folder.iterdir(), key=lambda each: each.stat().st_mtime)
        for path in known[:-_MOST]:
            shutil.rmtree(path, ignore_errors=True)


def open_answers(environment: Mapping[str, str]) -> AnswerCache | None:
    """The cache of this user; None: there is no folder for one, or it is switched off."""
    folder = cache_folder(environment)
    if folder is None or environment.get(SWITCH) == "no":
        return None
    return AnswerCache(folder / _FOLDER, _digest_code())


@cache
def _digest_code() -> str:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.safetensors")]
    return digest_files(PACKAGE, files)


def recall_or_search(
    request: Request, known: AnswerCache | None, *, say: Report | None = None, **given: Any
) -> Answer:
    """The answer that is kept, or what comes of going on from it, or of a search; kept then.

    A kept answer is enough where its search had as much time, or ended by itself. What is `given`
    goes to `answer_request`. A cache that cannot be read or written is said, and does without.
    """
    said = say or (lambda _: None)
    check_request(
        request.graph, request.method, request.seed, request.budget_seconds, request.sharing,
        request.microbatches, request.scope,  # type: ignore[arg-type]
    )  # fmt: skip
    if known is None:
        return answer_request(request, progress=say, **given)
    before = _read(known, request, said)
    if before is not None and _is_enough(before, request):
        took, day = format_seconds(before.search_seconds), known.found_at(request)
        note = f"answered from the cache: searched for {took} on {day} (--fresh searches anew)"
        return replace(before, request=request, notes=(*before.notes, note))

    def search(changed: Request, *starts: Plan) -> Answer:
        return answer_request(changed, starts=starts, progress=say, **given)

    answer = search(request) if before is None else _go_on(before, request, search)
    if answer.stop is not Stop.INTERRUPTED:
        try:
            known.write(answer)
        except InputError as error:
            said(f"the answer is not kept: {error}")
    return answer


def _read(known: AnswerCache, request: Request, say: Report) -> Answer | None:
    try:
        return known.read(request)
    except InputError as error:
        say(f"searching anew: {error}")
        return None


def _is_enough(before: Answer, request: Request) -> bool:
    return (
        before.stop in (Stop.PROVED, Stop.GAP, Stop.ENDED)
        or _budget(before) >= request.budget_seconds
    )


def _budget(answer: Answer) -> float:
    assert answer.request is not None, "a kept answer says what it was asked"
    return answer.request.budget_seconds


def _go_on(before: Answer, request: Request, search: Callable[..., Answer]) -> Answer:
    """The best of what is kept, of searches near it, and of one with another seed, in the time that
    is added."""
    left, found = request.budget_seconds - _budget(before), [before]
    spent = before.search_seconds
    if before.plan is not None:
        near = search(replace(request, budget_seconds=_NEAR_SHARE * left), before.plan)
        found.append(near)
        left -= near.search_seconds
        spent += near.search_seconds
    # Twice the same seed would take the same way once more.
    again = replace(request, budget_seconds=max(left, 1e-3), seed=request.seed + 1)
    last = search(again)
    found.append(last)
    best = min(found, key=lambda each: each.step_seconds)
    bound = max(before.bound_seconds, last.bound_seconds)
    stop = last.stop
    if best.plan is not None and stop is not Stop.INTERRUPTED:
        stop = Stop.PROVED if is_proved(best.step_seconds, bound) else stop
        stop = Stop.LIMIT if stop is Stop.INFEASIBLE else stop
    took = format_seconds(before.search_seconds)
    return replace(
        best,
        bound_seconds=bound,
        stop=stop,
        search_seconds=spent + last.search_seconds,
        request=request,
        notes=(*best.notes, f"goes on from a search of {took} in the cache"),
    )
