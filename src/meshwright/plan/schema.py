"""The JSON Schema of answers, made of `plan.record`."""

from typing import Any

from meshwright.form import form_schema
from meshwright.plan.answer import Stop
from meshwright.plan.record import AnswerRecord


def answer_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of `answer.json`, `plan --json` and `Answer.to_dict`."""
    schema = form_schema("Meshwright answer", AnswerRecord)
    schema["$defs"]["AnswerRecord"]["properties"]["stop"]["enum"] = list(Stop)
    return schema
