"""
The check of a provider: what its server does with the turns that a harness needs, and which settings cure what it does
wrong. A cure is tried before it is recommended, and the probes after it run with it.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from agent_harness.config import ProviderSettings, Settings
from agent_harness.engine.harness import Harness
from agent_harness.errors import ConfigError
from agent_harness.protocol.tools import ToolChoice
from agent_harness.providers.cures import Cure, advise, find_cures
from agent_harness.providers.probes import CHOICES, PROBES, Probe
from agent_harness.providers.report import CheckReport, ProbeReport, Status, Tried
from agent_harness.providers.talk import ProbeFailed, Talk, Watched
from agent_harness.wiring import make_model

__all__ = ["check_provider", "choose_provider"]

Tell = Callable[[ProbeReport], None]

MAX_TRIES = 12
"""Most attempts to cure one probe."""

INCURABLE = frozenset({"provider_auth", "rate_limited", "timeout", "upstream_idle"})
"""Failures that no setting cures, or that take too long to try."""


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
    # Retries would hide what the server does.
    check = _Check(attrs.evolve(settings, max_retries=0))
    told: dict[str, ProbeReport] = {}
    for probe in PROBES:
        if probe.needs is not None and not told[probe.needs].is_passable:
            report = _skip(probe, probe.needs)
        else:
            try:
                report = await check.run(probe)
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


@attrs.define
class _Check:
    """
    A check in progress: the settings in force, and the tool choices that are left to try.
    """

    settings: ProviderSettings
    choices: list[ToolChoice] = attrs.field(factory=lambda: list(CHOICES))

    async def run(self, probe: Probe) -> ProbeReport:
        """
        Play one probe, and look for a cure if it fails.
        """
        start = time.monotonic()
        report = ProbeReport(name=probe.name, title=probe.title, status="ok")
        try:
            says = await self._play(probe, self.settings)
        except ProbeFailed as failure:
            self._stop_at(failure)
            status: Status = "warn" if probe.is_optional else "fail"
            seconds = time.monotonic() - start
            failed = attrs.evolve(report, status=status, seconds=seconds, code=failure.code, message=failure.message)
            return await self._mend(probe, failed)
        return attrs.evolve(report, seconds=time.monotonic() - start, says=tuple(says))

    def _stop_at(self, failure: ProbeFailed) -> None:
        if failure.code == "provider_auth":
            raise ConfigError(failure.message)
        if failure.unreachable:
            raise _Stopped(
                f"{failure.message.rstrip('.')}. Is {self.settings.base_url} its address, and is it started?"
            )

    async def _mend(self, probe: Probe, report: ProbeReport) -> ProbeReport:
        """
        Try the cures one by one. One that the failure names stays if the next failure is about something else: one
        fault may hide another.
        """
        cured, code, message = self.settings, report.code, report.message or ""
        kept: list[Cure] = []
        tried: set[str] = set()
        while len(tried) < MAX_TRIES and code not in INCURABLE:
            cure = next((cure for cure in find_cures(probe.name, message, cured) if cure.why not in tried), None)
            if cure is None:
                break
            tried.add(cure.why)
            is_named = cure.said.search(message) is not None
            try:
                says = await self._play(probe, cure.apply(cured))
            except ProbeFailed as again:
                if is_named and not cure.said.search(again.message) and not again.unreachable:
                    cured, code, message = cure.apply(cured), again.code, again.message
                    kept.append(cure)
                continue
            if not is_named and await self._passes(probe, cured):
                return attrs.evolve(report, says=(*says, "It failed once and passed when it was tried again."))
            cured = self.settings = cure.apply(cured)
            cures = tuple(Tried(field=one.field, value=getattr(cured, one.field), why=one.why) for one in (*kept, cure))
            return attrs.evolve(report, says=tuple(says), cures=cures)
        advice = advise(message)
        return attrs.evolve(report, says=() if advice is None else (advice,))

    async def _passes(self, probe: Probe, settings: ProviderSettings) -> bool:
        """
        Whether a probe that failed passes now: what was cured by a guess may have been chance.
        """
        try:
            await self._play(probe, settings)
        except ProbeFailed:
            return False
        return True

    async def _play(self, probe: Probe, settings: ProviderSettings) -> list[str]:
        """
        Play a probe, once more if the server could not be reached: it may have closed the connection between two calls.

        Raises:
            ProbeFailed: the server did not do what is needed.
        """
        try:
            return await self._play_once(probe, settings)
        except ProbeFailed as failure:
            if not failure.unreachable:
                raise
        return await self._play_once(probe, settings)

    async def _play_once(self, probe: Probe, settings: ProviderSettings) -> list[str]:
        """
        Play a probe in a harness of its own, so that nothing of another one is left.
        """
        model = Watched(make_model(settings))
        async with Harness({settings.name: model}, default_provider=settings.name) as harness:
            return await probe.run(Talk(harness, model, probe.agent, self.choices))
