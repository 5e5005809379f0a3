"""
``providers``: a look at model servers.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import click

from agent_harness.cli.exits import FAILED, run
from agent_harness.cli.options import api_option, config_option, load
from agent_harness.cli.terminal import clean, dump_json

__all__ = ["providers"]


@click.group()
def providers() -> None:
    """
    Look at model servers.
    """


@providers.command("check")
@click.argument("name", required=False)
@config_option
@click.option("--model", help="Model to ask for.")
@api_option
@click.option("--base-url", help="Its address up to and including /v1.")
@click.option("--no-key", is_flag=True, help="The model server wants no key.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def providers_check(name: str | None, config: Path | None, no_key: bool, as_json: bool, **flags: Any) -> None:
    """
    Try what a harness needs of the provider NAME, and say which settings cure what its server does wrong.

    About 13 short model calls are made. Exit code 0: all is well; 1: something fails; 2: the settings are wrong.
    """
    flags["needs_key"] = False if no_key else None
    if not run(_check_provider(name, config, as_json, flags)):
        sys.exit(FAILED)


async def _check_provider(name: str | None, config: Path | None, as_json: bool, flags: dict[str, Any]) -> bool:
    from agent_harness.providers import report as reporting
    from agent_harness.providers.check import check_provider, choose_provider

    # What the server does wrong is told by the report; log lines would run into it.
    logging.getLogger("agent_harness").setLevel(logging.ERROR)
    provider = choose_provider(load(config, {}), name, flags)

    def tell(lines: list[str]) -> None:
        if not as_json:
            click.echo(clean("\n".join(lines)))

    tell([reporting.describe_provider(provider), ""])
    report = await check_provider(provider, lambda probe: tell(reporting.describe_probe(probe)))
    tell(reporting.describe_check(report))
    if as_json:
        click.echo(dump_json(reporting.report_json(report), indent=2))
    return report.is_fine
