"""`meshwright audit`: what a present set-up takes, and how much faster it could be."""

from argparse import Namespace

from meshwright.audit.load import audit_file
from meshwright.audit.record import audit_record
from meshwright.cli.console import make_console, print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.machine import load_cluster_here, remark_cpu
from meshwright.cli.progress import shown_progress
from meshwright.cli.summary.audit import show_audit


def run_audit(arguments: Namespace) -> int:
    """Read the configuration, search, and show both."""
    cluster = load_cluster_here(arguments.cluster)
    with shown_progress(f"auditing {arguments.config}", arguments) as progress:
        audit = audit_file(
            arguments.config,
            arguments.model,
            cluster,
            batch=arguments.batch,
            microbatches=arguments.microbatches,
            precision=arguments.precision,
            budget_seconds=arguments.budget,
            progress=progress,
        )
    remark_cpu(cluster)
    if arguments.json:
        print_json(audit_record(audit).to_dict())
    else:
        show_audit(make_console(), str(arguments.config), audit)
    return ExitCode.DONE if audit.best is not None else ExitCode.NO_PLAN
