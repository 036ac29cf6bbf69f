"""The carbon intensity of a generation mix; hours that lack an important fuel have none.

>>> mix_intensity_g_per_kwh({"COL": 3e5, "WND": 1e5, "BAT": -5e4})
617.75
"""

from collections.abc import Iterable, Mapping
from typing import Final

Mix = Mapping[str, float | None]
"""Generation in an hour by the EIA's fuel code [kWh]; None or absent if unknown."""

LIFECYCLE_G_PER_KWH: Final[Mapping[str, float]] = {
    "COL": 820.0,
    "NG": 490.0,
    "BIO": 230.0,
    "SUN": 48.0,
    "SNB": 48.0,
    "GEO": 38.0,
    "WAT": 24.0,
    "NUC": 12.0,
    "WND": 11.0,
    "WNB": 11.0,
    "OIL": 650.0,
    "OTH": 700.0,
    "UNK": 700.0,
}
"""Lifecycle emissions by fuel [gCO2eq/kWh].

Medians of IPCC AR5 WG3 (2014), Annex III, table A.III.2: coal (pulverised), gas (combined cycle), dedicated biomass,
solar (utility PV), geothermal, hydropower, nuclear, onshore wind. SNB and WNB are solar and wind with a battery behind
the same meter. The table has no oil: that is UK Parliamentary Office of Science and Technology, postnote 268 (2006),
"Carbon footprint of electricity generation". Other and unknown fuels count as a mix of thermal plants, as in
Electricity Maps' default factors.
"""
STORAGE: Final = frozenset({"BAT", "PS", "OES", "UES"})
"""Batteries, pumped storage, other and unknown storage: their output was counted when it was generated."""
MIN_SHARE_RATIO: Final = 0.05
"""A fuel with at least this share of nearby hours matters: an hour that lacks it is missing, not wrong."""
REACH_S: Final = 48 * 3_600.0
"""A fuel that no hour this near reports is no longer reported at all."""


def mix_intensity_g_per_kwh(mix: Mix) -> float | None:
    """Return Σ generation·factor / Σ generation [gCO2eq/kWh], or None if nothing was generated.

    Negative generation (the plants' own consumption) and storage count as 0.
    """
    generated_kwh = _generated(mix)
    total_kwh = sum(generated_kwh.values())
    if total_kwh <= 0:
        return None
    unknown_g_per_kwh = LIFECYCLE_G_PER_KWH["UNK"]
    return (
        sum(energy_kwh * LIFECYCLE_G_PER_KWH.get(fuel, unknown_g_per_kwh) for fuel, energy_kwh in generated_kwh.items())
        / total_kwh
    )


def intensities_g_per_kwh(mixes: Mapping[float, Mix]) -> dict[float, float | None]:
    """Return the carbon intensity of each hour; None if a fuel that matters then is missing.

    A fuel matters in an hour that lacks it if its share was 5 % or more in the last hour before, or the first after,
    that reports it. So a long outage of a fuel's data is noticed, and nights, which often lack solar, are no outages.

    Args:
        mixes: the mix of each hour, by its start [Unix s].
    """
    lacking = _lacking(mixes, sorted(mixes)) | _lacking(mixes, sorted(mixes, reverse=True))
    return {
        starts_s: None if starts_s in lacking else mix_intensity_g_per_kwh(mix)
        for starts_s, mix in sorted(mixes.items())
    }


def _lacking(mixes: Mapping[float, Mix], order: Iterable[float]) -> set[float]:
    """Return the hours that lack a fuel which mattered when it was last reported, in the given order of hours."""
    lacking: set[float] = set()
    reported: dict[str, tuple[float, float]] = {}
    for starts_s in order:
        shares = _shares(mixes[starts_s])
        for fuel, (reported_s, share_ratio) in reported.items():
            if fuel not in shares and share_ratio >= MIN_SHARE_RATIO and abs(starts_s - reported_s) <= REACH_S:
                lacking.add(starts_s)
        reported |= {fuel: (starts_s, share_ratio) for fuel, share_ratio in shares.items()}
    return lacking


def _shares(mix: Mix) -> dict[str, float]:
    generated_kwh = _generated(mix)
    total_kwh = sum(generated_kwh.values())
    return {fuel: energy_kwh / total_kwh if total_kwh else 0.0 for fuel, energy_kwh in generated_kwh.items()}


def _generated(mix: Mix) -> dict[str, float]:
    """Return the generation of each reported fuel [kWh], without storage."""
    return {fuel: max(reported, 0.0) for fuel, reported in mix.items() if reported is not None and fuel not in STORAGE}
