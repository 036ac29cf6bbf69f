"""The catalogue of providers, by their `name` in a `[[signal.provider]]` table."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from policies.providers.base import Provider, ProviderSettings, SignalError
from policies.providers.sources.awattar import AwattarProvider, AwattarSettings
from policies.providers.sources.carbon_aware_sdk import CarbonAwareSdkProvider, CarbonAwareSdkSettings
from policies.providers.sources.constant import CARBON_UNIT, ConstantPriceSettings, ConstantProvider, ConstantSettings
from policies.providers.sources.csv_file import CsvPriceSettings, CsvProvider, CsvSettings
from policies.providers.sources.eia import EiaProvider, EiaSettings
from policies.providers.sources.electricity_maps import (
    ElectricityMapsPriceProvider,
    ElectricityMapsPriceSettings,
    ElectricityMapsProvider,
    ElectricityMapsSettings,
)
from policies.providers.sources.energinet import (
    EnerginetPriceProvider,
    EnerginetPriceSettings,
    EnerginetProvider,
    EnerginetSettings,
)
from policies.providers.sources.energy_charts import (
    EnergyChartsPriceProvider,
    EnergyChartsPriceSettings,
    EnergyChartsProvider,
    EnergyChartsSettings,
)
from policies.providers.sources.entsoe import EntsoeProvider, EntsoeSettings
from policies.providers.sources.mqtt import MqttProvider, MqttSettings
from policies.providers.sources.neso import NesoProvider, NesoSettings
from policies.providers.sources.octopus import OctopusProvider, OctopusSettings
from policies.providers.sources.watttime import WattTimeProvider, WattTimeSettings

Build = Callable[[Any, aiohttp.ClientSession], Provider]
"""Builds a provider from settings of the entry's own type and an HTTP session.

Raises:
    ValueError: a secret is missing.
    SignalError: a file cannot be used.
"""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A provider in the catalogue: the type of its settings, how it is built, and a short description."""

    settings: type[ProviderSettings]
    build: Build
    summary: str
    is_persistent: bool = True
    """Whether its history is stored on disk; a file keeps its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A configured provider.

    Attributes:
        provider: the provider.
        key: identifies its stored history; differs with every setting that changes the numbers.
        is_persistent: whether its history is stored on disk.
        max_age_s: how long its last value may be held [s].
        lag_s: how late its values usually are, beyond one step [s].
    """

    provider: Provider
    key: str = ""
    is_persistent: bool = True
    max_age_s: float = 7_200.0
    lag_s: float = 0.0


def _constant(settings: ConstantSettings, _: aiohttp.ClientSession) -> Provider:
    return ConstantProvider(settings.value, kind=settings.signal_kind(), unit=CARBON_UNIT, zone=settings.zone)


def _constant_price(settings: ConstantPriceSettings, _: aiohttp.ClientSession) -> Provider:
    return ConstantProvider(settings.value, kind="price", unit=f"{settings.currency}/kWh", zone=settings.zone)


def _file(settings: CsvSettings | CsvPriceSettings, _: aiohttp.ClientSession) -> Provider:
    return CsvProvider(Path(settings.path), zone=settings.zone, kind=settings.signal_kind())


def _mqtt(settings: MqttSettings, _: aiohttp.ClientSession) -> Provider:
    return MqttProvider(settings)


CARBON: Final[Mapping[str, CatalogueEntry]] = {
    "neso": CatalogueEntry(NesoSettings, NesoProvider, "Great Britain and its regions; no key"),
    "energy-charts": CatalogueEntry(EnergyChartsSettings, EnergyChartsProvider, "Europe by country; no key"),
    "energinet": CatalogueEntry(EnerginetSettings, EnerginetProvider, "Denmark; no key"),
    "electricity-maps": CatalogueEntry(
        ElectricityMapsSettings, ElectricityMapsProvider, "the world; a token, free for one zone"
    ),
    "watttime": CatalogueEntry(
        WattTimeSettings, WattTimeProvider, "the world, marginal; an account, free for one region"
    ),
    "carbon-aware-sdk": CatalogueEntry(
        CarbonAwareSdkSettings, CarbonAwareSdkProvider, "a Carbon Aware SDK WebAPI of your own"
    ),
    "eia": CatalogueEntry(EiaSettings, EiaProvider, "balancing authorities of the USA; a free key"),
    "mqtt": CatalogueEntry(MqttSettings, _mqtt, "a topic of your own broker"),
    "csv": CatalogueEntry(CsvSettings, _file, "a file of your own", is_persistent=False),
    "constant": CatalogueEntry(ConstantSettings, _constant, "one value for ever", is_persistent=False),
}
PRICE: Final[Mapping[str, CatalogueEntry]] = {
    "octopus": CatalogueEntry(OctopusSettings, OctopusProvider, "Agile tariffs in Great Britain; no key"),
    "awattar": CatalogueEntry(AwattarSettings, AwattarProvider, "Germany and Austria; no key"),
    "energy-charts": CatalogueEntry(
        EnergyChartsPriceSettings, EnergyChartsPriceProvider, "Europe by bidding zone; no key"
    ),
    "energinet": CatalogueEntry(EnerginetPriceSettings, EnerginetPriceProvider, "Denmark; no key"),
    "entsoe": CatalogueEntry(EntsoeSettings, EntsoeProvider, "Europe by bidding zone; a free token"),
    "electricity-maps": CatalogueEntry(
        ElectricityMapsPriceSettings, ElectricityMapsPriceProvider, "the world; a paid token"
    ),
    "mqtt": CatalogueEntry(MqttSettings, _mqtt, "a topic of your own broker"),
    "csv": CatalogueEntry(CsvPriceSettings, _file, "a file of your own", is_persistent=False),
    "constant": CatalogueEntry(ConstantPriceSettings, _constant_price, "one price for ever", is_persistent=False),
}
CATALOGUE: Final[Mapping[str, Mapping[str, CatalogueEntry]]] = {"carbon": CARBON, "price": PRICE}
"""The providers for each `signal.kind`; `energy` needs none."""


@asynccontextmanager
async def open_sources(chosen: Sequence[tuple[str, CatalogueEntry, ProviderSettings]]) -> AsyncIterator[list[Source]]:
    """Build the providers, which share one HTTP session, and close them afterwards.

    Args:
        chosen: name, entry and settings of each.

    Raises:
        SourcesError: secrets are missing or files cannot be used, each with its position in the chain.
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=True))
        sources: list[Source] = []
        faults: list[str] = []
        for number, (name, entry, settings) in enumerate(chosen):
            try:
                provider = entry.build(settings, session)
            except (ValueError, SignalError) as error:
                faults += [f"[{number}] ({name}): {line}" for line in str(error).splitlines()]
            else:
                sources.append(_source(name, entry, settings, provider))
        if faults:
            raise SourcesError(faults)
        for source in sources:
            if isinstance(source.provider, AbstractAsyncContextManager):
                await stack.enter_async_context(source.provider)
        yield sources


def _source(name: str, entry: CatalogueEntry, settings: ProviderSettings, provider: Provider) -> Source:
    """Return a configured provider; its key depends on no secret, nor on settings that change no number."""
    defining = {
        key: value
        for key, value in msgspec.structs.asdict(settings).items()
        if key not in _NOT_DEFINING and not key.endswith(("_file", "_env"))
    }
    digest = hashlib.sha256(msgspec.json.encode(defining, order="sorted")).hexdigest()[:16]
    return Source(
        provider=provider,
        key=f"{name} {provider.kind} {digest}",
        is_persistent=entry.is_persistent,
        max_age_s=settings.max_age_s,
        lag_s=settings.lag_s,
    )


class SourcesError(Exception):
    """Providers cannot be built; `faults` lists why, each with its position in the chain."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(faults))


_NOT_DEFINING: Final = frozenset({"max_age_s", "lag_s", "username"})
