"""The providers there are, by the name that a `[[signal.provider]]` table gives them."""

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
"""From the settings, of the entry's own type, and a session to a provider.

Raises:
    ValueError: a secret is missing.
    SignalError: a file cannot be used.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A provider that can be named: its settings, how it is made, and what it is, in a few words."""

    settings: type[ProviderSettings]
    build: Build
    what: str
    is_kept: bool = True
    """Whether its history is worth keeping on disk: that of a file is in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A provider at work, and what its settings say of it.

    Attributes:
        provider: the provider.
        key: under what its history is kept: another one for each setting that changes the numbers.
        is_kept: whether its history is worth keeping on disk.
        max_age_s: how long its last value may be held [s].
        lag_s: how late its values usually are, beyond one step [s].
    """

    provider: Provider
    key: str = ""
    is_kept: bool = True
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
    "neso": CatalogueEntry(settings=NesoSettings, build=NesoProvider, what="Great Britain and its regions; no key"),
    "energy-charts": CatalogueEntry(
        settings=EnergyChartsSettings, build=EnergyChartsProvider, what="Europe by country; no key"
    ),
    "energinet": CatalogueEntry(settings=EnerginetSettings, build=EnerginetProvider, what="Denmark; no key"),
    "electricity-maps": CatalogueEntry(
        settings=ElectricityMapsSettings, build=ElectricityMapsProvider, what="the world; a token, free for one zone"
    ),
    "watttime": CatalogueEntry(
        settings=WattTimeSettings, build=WattTimeProvider, what="the world, marginal; an account, free for one region"
    ),
    "carbon-aware-sdk": CatalogueEntry(
        settings=CarbonAwareSdkSettings, build=CarbonAwareSdkProvider, what="a Carbon Aware SDK WebAPI of your own"
    ),
    "eia": CatalogueEntry(settings=EiaSettings, build=EiaProvider, what="balancing authorities of the USA; a free key"),
    "mqtt": CatalogueEntry(settings=MqttSettings, build=_mqtt, what="a topic of somebody else's"),
    "csv": CatalogueEntry(settings=CsvSettings, build=_file, what="a file of your own", is_kept=False),
    "constant": CatalogueEntry(settings=ConstantSettings, build=_constant, what="one value for ever", is_kept=False),
}
PRICE: Final[Mapping[str, CatalogueEntry]] = {
    "octopus": CatalogueEntry(
        settings=OctopusSettings, build=OctopusProvider, what="Agile tariffs in Great Britain; no key"
    ),
    "awattar": CatalogueEntry(settings=AwattarSettings, build=AwattarProvider, what="Germany and Austria; no key"),
    "energy-charts": CatalogueEntry(
        settings=EnergyChartsPriceSettings, build=EnergyChartsPriceProvider, what="Europe by bidding zone; no key"
    ),
    "energinet": CatalogueEntry(settings=EnerginetPriceSettings, build=EnerginetPriceProvider, what="Denmark; no key"),
    "entsoe": CatalogueEntry(
        settings=EntsoeSettings, build=EntsoeProvider, what="Europe by bidding zone; a free token"
    ),
    "electricity-maps": CatalogueEntry(
        settings=ElectricityMapsPriceSettings, build=ElectricityMapsPriceProvider, what="the world; a paid token"
    ),
    "mqtt": CatalogueEntry(settings=MqttSettings, build=_mqtt, what="a topic of somebody else's"),
    "csv": CatalogueEntry(settings=CsvPriceSettings, build=_file, what="a file of your own", is_kept=False),
    "constant": CatalogueEntry(
        settings=ConstantPriceSettings, build=_constant_price, what="one price for ever", is_kept=False
    ),
}
CATALOGUE: Final[Mapping[str, Mapping[str, CatalogueEntry]]] = {"carbon": CARBON, "price": PRICE}
"""The entries for each `signal.kind`; `energy` needs none."""


@asynccontextmanager
async def open_sources(chosen: Sequence[tuple[str, CatalogueEntry, ProviderSettings]]) -> AsyncIterator[list[Source]]:
    """Make the providers, with one HTTP session for all of them, and let go of it afterwards.

    Args:
        chosen: name, entry and settings of each.

    Raises:
        SourcesError: secrets are missing or files cannot be used, each with its place in the chain.
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
    """Return a provider with what its settings say of it; secrets, and what changes no number, are not in the key."""
    defining = {
        key: value
        for key, value in msgspec.structs.asdict(settings).items()
        if key not in _NOT_DEFINING and not key.endswith(("_file", "_env"))
    }
    digest = hashlib.sha256(msgspec.json.encode(defining, order="sorted")).hexdigest()[:16]
    return Source(
        provider=provider,
        key=f"{name} {provider.kind} {digest}",
        is_kept=entry.is_kept,
        max_age_s=settings.max_age_s,
        lag_s=settings.lag_s,
    )


class SourcesError(Exception):
    """Providers cannot be made; `faults` lists why, each with its place in the chain."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(faults))


_NOT_DEFINING: Final = frozenset({"max_age_s", "lag_s", "username"})
