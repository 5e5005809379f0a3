"""
The check of a provider: what its server does with the turns that a harness needs, and which settings cure what it does
wrong. A cure is tried before it is recommended, and the probes after it run with it.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from agent_harness.config import ProviderSettings, Settings
from agent_harness.engine.harness import Harness
from agent_harness.errors import ConfigError
from agent_harness.providers_cures import Cure, advise, find_cures
from agent_harness.providers_probes import PROBES, Probe
from agent_harness.providers_talk import ProbeFailed, Talk, Watched
from agent_harness.wiring import make_model

__all__ = [
    "CheckReport",
    "ProbeReport",
    "Tried",
    "check_provider",
    "choose_provider",
    "describe_check",
    "describe_probe",
    "describe_provider",
    "report_json",
]

Status = Literal["ok", "warn", "fail", "skip"]
Tell = Callable[["ProbeReport"], None]

MAX_TRIES = 12
"""Most attempts to cure one probe."""

INCURABLE = frozenset({"provider_auth", "rate_limited", "timeout", "upstream_idle"})
"""Failures that no setting cures, or that take too long to try."""


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
    What one probe showed. ``status``: ``warn`` is a failure that matters only to some. ``seconds`` is the time of the
    attempt that counts: the one that passed, else the first. ``message`` is what the first attempt failed with.
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


def choose_provider(settings: Settings, name: str | None, flags: Mapping[str, Any]) -> ProviderSettings:
    """
    The provider *name* (None: the default one) with what *flags* say of it; a flag that is None says nothing.

    Raises:
        ConfigError: there is no such provider, or the address is none.
    """
    wanted = name or settings.default_provider
    provider = next((provider for provider in settings.providers if provider.name == wanted), None)
    if provider is None:
        known = ", ".join(provider.name for provider in settings.providers)
        raise ConfigError(f"There is no provider {wanted!r}; the settings have: {known}.")
    given = {key: value for key, value in flags.items() if value is not None}
    provider = attrs.evolve(provider, **given)
    if not provider.base_url.startswith(("http://", "https://")):
        raise ConfigError(f"--base-url is {provider.base_url!r}; it must begin with http:// or https://.")
    return attrs.evolve(provider, base_url=provider.base_url.rstrip("/"))


async def check_provider(settings: ProviderSettings, tell: Tell = lambda probe: None) -> CheckReport:
    """
    Play all probes against the provider; *tell* gets each report as soon as it is there.

    Raises:
        ConfigError: its key is missing or refused.
    """
    # Retries would hide what the server does, and the check waits for no longer than its own bound.
    now = attrs.evolve(settings, max_retries=0)
    told: dict[str, ProbeReport] = {}
    for probe in PROBES:
        if probe.needs is not None and not told[probe.needs].is_passable:
            report = _skip(probe, probe.needs)
        else:
            try:
                report, now = await _check_one(probe, now)
            except _Stopped as stopped:
                return CheckReport(settings=settings, probes=tuple(told.values()), stopped=str(stopped))
        told[probe.name] = report
        tell(report)
    return CheckReport(settings=settings, probes=tuple(told.values()))


class _Stopped(Exception):
    """
    The server cannot be asked anything.
    """


def _skip(probe: Probe, needed: str) -> ProbeReport:
    title = next(other.title for other in PROBES if other.name == needed)
    return ProbeReport(name=probe.name, title=probe.title, status="skip", says=(f"It needs {title}.",))


async def _check_one(probe: Probe, settings: ProviderSettings) -> tuple[ProbeReport, ProviderSettings]:
    """
    Play one probe, and look for a cure if it fails; the report, and the settings that are in force from now on.
    """
    start = time.monotonic()
    try:
        says = await _play(probe, settings)
    except ProbeFailed as failure:
        seconds = time.monotonic() - start
        _stop_at(failure, settings)
        return await _mend(probe, settings, failure, seconds)
    done = ProbeReport(
        name=probe.name, title=probe.title, status="ok", seconds=time.monotonic() - start, says=tuple(says)
    )
    return done, settings


def _stop_at(failure: ProbeFailed, settings: ProviderSettings) -> None:
    if failure.code == "provider_auth":
        raise ConfigError(failure.message)
    if failure.unreachable:
        raise _Stopped(f"{failure.message.rstrip('.')}. Is {settings.base_url} its address, and is it started?")


async def _mend(
    probe: Probe, settings: ProviderSettings, first: ProbeFailed, seconds: float
) -> tuple[ProbeReport, ProviderSettings]:
    """
    Try the cures one by one. One that is named in the failure stays if the next failure is about something else: one
    fault may hide another.
    """
    cured, failure, kept = settings, first, list[Cure]()
    tried: set[str] = set()
    says: list[str] | None = None
    while says is None and len(tried) < MAX_TRIES and failure.code not in INCURABLE:
        cure = next((cure for cure in find_cures(probe.name, failure.message, cured) if cure.why not in tried), None)
        if cure is None:
            break
        tried.add(cure.why)
        start = time.monotonic()
        try:
            says = await _play(probe, cure.apply(cured))
        except ProbeFailed as again:
            if not cure.said.search(failure.message) or cure.said.search(again.message) or again.unreachable:
                continue
            failure = again
        else:
            seconds = time.monotonic() - start
        cured = cure.apply(cured)
        kept.append(cure)
    status: Status = "warn" if probe.is_optional else "fail"
    report = ProbeReport(
        name=probe.name, title=probe.title, status=status, seconds=seconds, code=first.code, message=first.message
    )
    if says is None:
        advice = advise(failure.message)
        return attrs.evolve(report, says=() if advice is None else (advice,)), settings
    cures = tuple(Tried(field=cure.field, value=getattr(cured, cure.field), why=cure.why) for cure in kept)
    return attrs.evolve(report, says=tuple(says), cures=cures), cured


async def _play(probe: Probe, settings: ProviderSettings) -> list[str]:
    """
    Play a probe in a harness of its own, so that nothing of another one is left.

    Raises:
        ProbeFailed: the server did not do what is needed.
    """
    model = Watched(make_model(settings))
    async with Harness({settings.name: model}, default_provider=settings.name) as harness:
        return await probe.run(Talk(harness, model, probe.agent))


# What a person reads, and what a program does.


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
