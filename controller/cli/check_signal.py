"""What `gridchase check` says of the providers of the signal: each is asked once, and what a failure means is told."""

import asyncio
from typing import Final

import msgspec

from controller.cli.finding import Finding
from controller.cli.wiring import losses_of, opened_sources
from controller.config import SignalConfig
from controller.errors import ConfigError
from policies.providers.base import (
    SignalDataError,
    SignalError,
    SignalLimitedError,
    SignalRefusedError,
    SignalUnavailableError,
)
from policies.providers.catalogue import Source
from policies.signal import Signal

FETCH_TIMEOUT_S: Final = 45.0
LOOK_BACK_S: Final = 86_400.0
LOOK_AHEAD_S: Final = 86_400.0
_MEANINGS: Final[dict[type[SignalError], str]] = {
    SignalUnavailableError: "the controller tries again, and follows the next provider or its own forecast meanwhile",
    SignalLimitedError: "it is asked too often, perhaps by other programs with the same token; the controller waits",
    SignalRefusedError: "it stays like this until the token, the zone or the plan that was booked there is mended",
    SignalDataError: "its values are not used, because they are not what was asked for",
}


async def check_signal(config: SignalConfig, *, now_s: float) -> list[Finding]:
    """Return what each provider says now, and what is wrong with it."""
    if config.kind == "energy":
        return [Finding(what="signal (energy)", found="plain energy")]
    return [await _check_provider(config, number, now_s=now_s) for number in range(len(config.provider))]


async def _check_provider(config: SignalConfig, number: int, *, now_s: float) -> Finding:
    provider = config.provider[number]
    what = f"signal ({config.kind}, {number + 1} of {len(config.provider)})"
    alone = msgspec.structs.replace(config, provider=(provider,))
    try:
        async with opened_sources(alone) as sources, asyncio.timeout(FETCH_TIMEOUT_S):
            return await _ask(sources[0], what=what, now_s=now_s)
    except ConfigError as error:  # it was alone there, and so the first
        fault = str(error).replace("signal.provider[0]", f"signal.provider[{number}]")
        return Finding(what=what, found=provider.name, fault=fault)
    except SignalError as error:
        meaning = _MEANINGS.get(type(error), "")
        return Finding(what=what, found=provider.name, fault=f"{error}; {meaning}" if meaning else str(error))
    except TimeoutError:
        fault = f"no answer in {FETCH_TIMEOUT_S:g} s; {_MEANINGS[SignalUnavailableError]}"
        return Finding(what=what, found=provider.name, fault=f"{provider.name}: {fault}")


async def _ask(source: Source, *, what: str, now_s: float) -> Finding:
    provider = source.provider
    history = await provider.fetch_history(since_s=now_s - LOOK_BACK_S, now_s=now_s)
    losses = losses_of(provider)
    name = f"{provider.name} ({losses})" if losses else provider.name
    age_s = history.age_s(now_s) if history is not None else float("inf")
    if history is None or age_s > max(source.max_age_s, source.lag_s):
        fault = f"{provider.name} has no value for now: the plan will not follow the grid"
        return Finding(what=what, found=name, fault=fault)
    try:
        forecast = await provider.fetch_forecast(now_s=now_s, until_s=now_s + LOOK_AHEAD_S)
    except SignalError as error:
        return Finding(what=what, found=f"{name}: {_value(history, now_s, age_s)}; forecasts its own only: {error}")
    ahead = f"its forecast reaches {(forecast.ends_s - now_s) / 3600:.0f} h ahead" if forecast else "it has no forecast"
    return Finding(what=what, found=f"{name}: {_value(history, now_s, age_s)}; {ahead}")


def _value(history: Signal, now_s: float, age_s: float) -> str:
    """Return the newest value and its age, for people."""
    value = history.value_at(now_s if age_s == 0 else now_s - age_s - 1e-3)
    shown = "?" if value is None else f"{value:.4g}"
    return f"{shown} {history.unit}, {history.kind}" + (f", {age_s / 3600:.1f} h old" if age_s else "")
