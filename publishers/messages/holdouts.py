"""What the runs that were held out at the prior limit say of the others (A/B), from a `RunEnergy`, in words."""

from publishers.messages.reports import RunEnergy


def describe_holdouts(record: RunEnergy) -> str:
    """Return a sentence; "" where the record has no comparison."""
    if record.ab_runs is None or record.ab_held_out_runs is None:
        return ""
    of = f"A/B: {record.ab_held_out_runs} of {record.ab_runs} comparable runs were held out"
    energy = record.ab_saved_energy_ratio, record.ab_saved_energy_lower_ratio, record.ab_saved_energy_upper_ratio
    slowdown = record.ab_slowdown_ratio, record.ab_slowdown_lower_ratio, record.ab_slowdown_upper_ratio
    if None in energy or None in slowdown:
        return f"{of}: too early to compare the others with them"
    saved, lower, upper = (f"{100 * (ratio or 0.0):z.1f}" for ratio in energy)
    time, least, most = (f"{100 * ((ratio or 1.0) - 1):z.1f}" for ratio in slowdown)
    more = f"; {record.ab_more_runs} more until the energy is known to a point" if record.ab_more_runs else ""
    return (
        f"{of}; an iteration of the others took {saved} % less energy (90 %: {lower} to {upper} %) and {time} % more"
        f" time ({least} to {most} %){more}"
    )
