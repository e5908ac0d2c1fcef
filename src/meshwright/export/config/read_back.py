"""An export whose files are read again as `audit` reads them, so that what is said of it is what
they say, with what starts its ranks on the devices of that plan."""

from collections.abc import Mapping, Sequence

from meshwright.export.config.setup import Setup, plan_setup
from meshwright.export.exported import Exported, text_writer
from meshwright.export.launch.file import START, Start, write_launch
from meshwright.export.launch.place import order_devices
from meshwright.plan.request import Request


def as_exported(
    request: Request,
    texts: Mapping[str, str],
    left_out: Sequence[str],
    setup: Setup,
    start: Start,
    notes: Sequence[str] = (),
) -> Exported:
    """The files by their texts, with the plan of the setup that was read from them; `notes` are
    what has to be done before ranks are started."""
    cluster = request.cluster
    plan = plan_setup(setup, request.graph, cluster).plan
    devices = order_devices(plan, is_spread=setup.spread and setup.pipeline > 1)
    launch = write_launch(request.graph.name, cluster, plan, devices, start)
    more = () if launch else ("launch files: hosts have unlike numbers of ranks, which the "
                              "program's own launcher has no words for",)  # fmt: skip
    return Exported(
        files={name: text_writer(text) for name, text in texts.items()} | launch,
        left_out=(*left_out, *more),
        plan=plan,
        start=(*notes, *(START if launch else ())),
    )
