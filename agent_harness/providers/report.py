"""
The report of a provider's check: what a person reads of it, and what a program does.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from agent_harness.config import ProviderSettings

__all__ = [
    "CheckReport",
    "ProbeReport",
    "Status",
    "Tried",
    "describe_check",
    "describe_probe",
    "describe_provider",
    "report_json",
]

Status = Literal["ok", "warn", "fail", "skip"]


@attrs.frozen(kw_only=True)
class Tried:
    """
    A setting that helped: its field, the value, and what it does. As text it is a line of the settings file.
    """

    field: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.field} = {_as_toml(self.value)}"


@attrs.frozen(kw_only=True)
class ProbeReport:
    """
    What one probe showed. ``status``: ``warn`` is a failure that matters only to some. ``seconds`` and
    ``message`` are those of the first attempt.
    """

    name: str
    title: str
    status: Status
    seconds: float = 0.0
    says: tuple[str, ...] = ()
    code: str | None = None
    message: str | None = None
    cures: tuple[Tried, ...] = ()

    @property
    def is_passable(self) -> bool:
        """
        Whether what builds on this probe can be tried: it passed, if only with a cure.
        """
        return self.status in ("ok", "warn") or bool(self.cures)


@attrs.frozen(kw_only=True)
class CheckReport:
    """
    A whole check. ``settings`` are those it began with; ``stopped`` says why it could not go on.
    """

    settings: ProviderSettings
    probes: tuple[ProbeReport, ...]
    stopped: str | None = None

    @property
    def is_fine(self) -> bool:
        """
        Whether nothing failed.
        """
        return self.stopped is None and all(probe.status in ("ok", "warn") for probe in self.probes)

    @property
    def cures(self) -> tuple[Tried, ...]:
        """
        The settings that helped; of one field the last, which holds what came before.
        """
        found = {cure.field: cure for probe in self.probes for cure in probe.cures}
        return tuple(found.values())


def describe_check(report: CheckReport) -> list[str]:
    """
    The closing lines of a check.
    """
    if report.stopped is not None:
        return [report.stopped]
    if report.cures:
        lines = (f"{cure}  # {cure.why}" for cure in report.cures)
        return ["", "With these settings it passed:", "", f"[providers.{report.settings.name}]", *lines]
    failed = sum(probe.status == "fail" for probe in report.probes)
    return ["", f"{failed} of {len(report.probes)} probes failed." if failed else "All is well."]


def describe_probe(probe: ProbeReport) -> list[str]:
    """
    The lines of one probe.
    """
    clock = f"{probe.seconds:6.1f} s" if probe.status != "skip" else " " * 8
    lines = [f"{probe.status:<5}{probe.title:<44}{clock}"]
    if probe.message is not None:
        lines.append(f"     {probe.message}")
    lines += [f"     With {cure} it passes: this {cure.why}." for cure in probe.cures]
    return lines + [f"     {words}" for words in probe.says]


def describe_provider(settings: ProviderSettings) -> str:
    """
    The heading.
    """
    return f"Provider {settings.name}: {settings.api} at {settings.base_url}, model {settings.model}"


def report_json(report: CheckReport) -> dict[str, Any]:
    """
    The report as one JSON value.
    """
    settings = report.settings
    return {
        "provider": settings.name,
        "api": settings.api,
        "base_url": settings.base_url,
        "model": settings.model,
        "ok": report.is_fine,
        "stopped": report.stopped,
        "settings": {cure.field: cure.value for cure in report.cures},
        "probes": [attrs.asdict(probe) for probe in report.probes],
    }


def _as_toml(value: Any) -> str:
    """
    *value* as TOML; null, which it lacks, as the settings file has it.
    """
    if value is None:
        return "inf"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_as_toml(held)}" for name, held in value.items()) + " }"
    return json.dumps(value)
