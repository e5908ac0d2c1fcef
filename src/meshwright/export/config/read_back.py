"""An export whose files are read again as `audit` reads them, so that what is said of it is what
they say."""

from collections.abc import Mapping, Sequence

from meshwright.export.config.setup import Setup, plan_setup
from meshwright.export.exported import Exported, text_writer
from meshwright.plan.request import Request


def as_exported(
    request: Request,
    texts: Mapping[str, str],
    left_out: Sequence[str],
    setup: Setup,
    start: Sequence[str],
) -> Exported:
    """The files by their texts, with the plan of the setup that was read from them."""
    return Exported(
        files={name: text_writer(text) for name, text in texts.items()},
        left_out=tuple(left_out),
        plan=plan_setup(setup, request.graph, request.cluster).plan,
        start=tuple(start),
    )
