"""Reports published about a run: its power curve, its plan, and its energy on this node and over all nodes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Final, Literal, NamedTuple

import msgspec

from controller.accounting.iteration_log import RankLog
from controller.accounting.other_nodes import OtherNodes
from controller.accounting.ranks import Ranks, RunIdentity
from controller.ports import Blocked, Bus, Target
from controller.ports.orders import Pin
from controller.runtime.clock import Clock
from policies.savings.counterfactual import NOTHING_SAVED, Saving
from policies.savings.interval import MAX_CI90_RATIO, KnownSaving, Split, UnknownSaving
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import carbon_g
from publishers.messages.codec import M, Message, encode
from publishers.messages.reports import (
    KNOWN_EVIDENCE,
    NodeProfile,
    NodeProfileEntry,
    ProfileEntry,
    ProfileReport,
    RunEnergy,
    RunPlan,
    RunSchedule,
)
from publishers.messages.topics import Topics
from publishers.messages.training import RankStatus

MAX_DETAIL = 1_024
MAX_NAME = 200
"""Characters of a source or a zone."""
CHANGED_RATIO = 0.01
"""A measurement is published again once it has changed by so much."""
NARROWED_RATIO = 0.1
"""So is an interval."""
SUMMED = ("n_gpus", "max_power_w", "energy_j", "carbon_g", "cost", "work", "total_work")
"""What adds up over nodes, whatever is known of savings; of the rest the leader knows most for all."""

LEAST_REST_RATIO: Final = 0.01
"""Records round a saved share to 0.0001: where less than this is left of the baseline, that is not known to a point."""

SPLIT: Final = ("better_limit", "following", "measuring")
"""The parts of a saving."""
_NOTHING_KNOWN: Final = dict.fromkeys(
    (
        *("baseline_energy_j", "baseline_carbon_g", "baseline_duration_s", "saved_ratio", "saved_ci90_ratio"),
        *("saved_energy_ratio", "saved_energy_ci90_ratio", "slowdown_ratio", "slowdown_ci90_ratio"),
        "baseline_cost",
        *(f"saved_{part}_{end}" for part in SPLIT for end in ("ratio", "ci90_ratio")),
        *("pinned_extra_s", "pinned_extra_ci90_s", "pinned_extra_energy_j", "pinned_extra_energy_ci90_j"),
    )
)

_UNCHANGED: Final = KnownSaving(saving=NOTHING_SAVED, is_unchanged=True)

ProfileState = Literal["waiting", "profiling", "planned", "observing", "not_profiled"]
NodeState = Literal["following", "waiting", "observing"]


class RunReporter:
    """Publishes what this node knows about a run.

    Args:
        run: which run, on which node.
        bus: where to publish.
        topics: the topics below the configured root.
        ranks: the training processes on this node.
        other_nodes: what the other nodes of the run have published.
        clock: the time.
    """

    def __init__(
        self, run: RunIdentity, *, bus: Bus, topics: Topics, ranks: Ranks, other_nodes: OtherNodes, clock: Clock
    ) -> None:
        self._run = run
        self._clock = clock
        self._bus = bus
        self._ranks = ranks
        self._other_nodes = other_nodes
        self._profile_topic = topics.run(run.key, "profile")
        self._schedule_topic = topics.run(run.key, "schedule")
        self._has_schedule: bool | None = None
        """Whether a schedule is published; None: not known, as a former controller may have left one."""
        self._plan_topic = topics.plan(run.node, run.key)
        self._energy_topic = topics.run(run.key, "energy")
        self._node_profile_topic = topics.run_on_node(run.key, run.node, "profile")
        self._node_energy_topic = topics.run_on_node(run.key, run.node, "energy")
        self._node_profile: NodeProfile | None = None

    def publish_profile(
        self,
        profile: PowerProfile | None,
        *,
        state: ProfileState,
        gpu_model: str,
        n_gpus: int,
        reason: str | None = None,
    ) -> None:
        """Publish the curve of a run that this node leads; `reason`: why there is none, a stable code."""
        report = profile_report(
            profile,
            state=state,
            reason=reason,
            gpu_model=gpu_model,
            n_gpus=n_gpus,
            batch_size=self._ranks.status.batch_size,
        )
        work = self._ranks.work_per_iteration
        if work is not None:
            unit = self._ranks.status.work_unit
            report = msgspec.structs.replace(report, work_per_iteration=work, work_unit=unit)
        self._retain(self._profile_topic, self._named(report))

    def publish_schedule(self, schedule: RunSchedule | None) -> None:
        """Publish what the plan of a run that this node leads expects; None: there is no plan, clear the last one."""
        if schedule is not None:
            self._retain(self._schedule_topic, self._named(schedule))
        elif self._has_schedule is not False:
            self._bus.publish(self._schedule_topic, b"", qos=1, retain=True)
        self._has_schedule = schedule is not None

    def leave_lead(self) -> None:
        """Clear the schedule that this node has published, if any: another node leads the run from now on."""
        if self._has_schedule:
            self.publish_schedule(None)
        self._has_schedule = None

    def publish_plan(self, plan: RunPlan) -> None:
        """Publish the limit that the other nodes of the run are to set; not retained: it holds while it is repeated."""
        self._bus.publish(self._plan_topic, encode(plan), qos=1)

    def publish_node_profile(
        self, target: Target | Blocked, points: list[NodeProfileEntry], *, state: NodeState, gpu_model: str, n_gpus: int
    ) -> None:
        """Publish how this node follows another, and what it has measured, where that has changed."""
        part = NodeProfile(
            run=self._run.run,
            state=state,
            reason=target.reason,
            detail=target.detail[:MAX_DETAIL],
            gpu_model=gpu_model,
            n_gpus=n_gpus,
            n_ranks=len(self._ranks.members),
            points=points,
            batch_size=self._ranks.status.batch_size,
        )
        last = self._node_profile
        if last is None or _essence(part) != _essence(last) or _has_moved(points, last.points):
            self._node_profile = part
            self._retain(self._node_profile_topic, self._named(part, node=self._run.node))

    def whole(self, part: RunEnergy) -> RunEnergy | None:
        """Return the energy of the whole run, by this node's part and those of others; None: rank 0 is on another."""
        if not self._ranks.is_leader:
            return None
        return summed(part, self._other_nodes.energies.values() if self._ranks.is_multi_node else ())

    def publish_energy(self, part: RunEnergy, whole: RunEnergy | None) -> None:
        """Publish the whole where this node leads the run and, of a run on several nodes, this node's part.

        The only part of a run would be the whole once more: who adds up all energies would count it twice.
        """
        if whole is None or self._ranks.is_multi_node:
            self._send_energy(self._node_energy_topic, self._named(part, node=self._run.node))
        if whole is not None:
            self._send_energy(self._energy_topic, self._named(whole))

    def _named(self, report: M, **more: str) -> M:
        """Return a report with the time, and with the ids of its topic."""
        run, ids = self._run, {**more, "user": self._run.user, "job": self._run.job}
        return msgspec.structs.replace(report, time_s=self._clock.now_s(), run=run.run, **ids)

    def _retain(self, topic: str, message: Message) -> None:
        self._bus.publish(topic, encode(message), qos=1, retain=True)

    def _send_energy(self, topic: str, energy: RunEnergy) -> None:
        self._bus.publish(topic, encode(energy), qos=int(energy.final), retain=energy.final)


def profile_report(
    profile: PowerProfile | None,
    *,
    state: ProfileState,
    gpu_model: str,
    n_gpus: int,
    batch_size: int | None,
    reason: str | None = None,
) -> ProfileReport:
    """Return the curve as far as it is measured."""
    return ProfileReport(
        state=state,
        reason=reason,
        gpu_model=gpu_model,
        n_gpus=n_gpus,
        batch_size=batch_size,
        points=[
            ProfileEntry(
                power_limit_w=point.power_limit_w,
                power_w=point.power_w,
                iterations_per_s=point.iterations_per_s,
                power_ci_w=point.power_ci_w,
                iterations_per_s_ci=point.iterations_per_s_ci,
                n=point.n,
            )
            for point in (profile.points if profile else ())
        ],
    )


def energy_report(
    status: RankStatus,
    logs: Sequence[RankLog],
    totals: Mapping[str, float | None],
    *,
    state: Literal["running", "finished", "lost", "silent"],
    gpu_model: str,
    n_gpus: int,
    final: bool,
    max_power_w: float | None = None,
    incomplete: Sequence[str] = (),
    would_save: tuple[float, float] | None = None,
    power_limit_w: float | None = None,
    speed_ratio: float | None = None,
    reason: Blocked | None = None,
    saving: KnownSaving | UnknownSaving | None = None,
    pin: Pin | None = None,
    pinned_s: float = 0.0,
    counting: Mapping[str, str | float | None] | None = None,
) -> RunEnergy:
    """Return this node's part of a run's energy; the slowest rank counts the iterations.

    `totals` and `counting` are by field; `would_save` is a share and the half-width of its 90 % interval.
    """
    furthest = max(logs, key=_n_epochs) if len(logs) > 1 else logs[0]
    epochs = furthest.epochs
    report = RunEnergy(
        run=status.run,
        state=state,
        reached=status.reached,
        batch_size=status.batch_size,
        gpu_model=gpu_model,
        n_gpus=n_gpus,
        epochs=epochs,
        epochs_missed=furthest.n_epochs - epochs,
        iterations=int(min(log.n_iterations for log in logs)),
        duration_s=0.0,
        energy_j=0.0,
        max_power_w=max_power_w,
        incomplete=list(incomplete),
        would_save_ratio=would_save[0] if would_save else None,
        would_save_ci90_ratio=would_save[1] if would_save else None,
        power_limit_w=power_limit_w,
        speed_ratio=speed_ratio,
        reason=reason.reason if reason else None,
        detail=reason.detail[:MAX_DETAIL] if reason else None,
        pinned_s=pinned_s or None,
        pinned_until_s=pin.until_s if pin else None,
        pinned_by=pin.by if pin else None,
        pinned_why=pin.why if pin else None,
        pinned_gpu_uuid=(pin.gpu_uuid or None) if pin else None,
        final=final,
    )
    return with_saving(msgspec.structs.replace(report, **totals, **(counting or {})), saving)


def how_counted(
    signal: Signal | None, *, since_s: float, now_s: float, host_power_w: float, pue: float
) -> dict[str, str | float | None]:
    """Return by which signal carbon or cost is counted, and in which currency, and what a plan weighs beside the GPUs.

    It is by field of `RunEnergy`; what is not configured is None. The run has gone on since a time [Unix s].
    """
    overhead: dict[str, str | float | None] = {"host_power_w": host_power_w or None, "pue": pue if pue > 1 else None}
    if signal is None or signal.kind == "energy":
        return overhead
    return overhead | {
        "signal_kind": signal.kind,
        "signal_source": signal.source[:MAX_NAME] or None,
        "signal_zone": signal.zone[:MAX_NAME] or None,
        "signal_unmeasured_s": signal.unmeasured_s(since_s, now_s),
        "currency": signal.unit.partition("/")[0] if signal.kind == "price" else None,
    }


def with_saving(part: RunEnergy, saving: KnownSaving | UnknownSaving | None) -> RunEnergy:
    """Return a record with what was saved and its evidence, or with why that is not known.

    The baselines follow from the ratios: what was saved is computed now and then, and what was used grows meanwhile.
    """
    if saving is None or not part.n_gpus:
        return part
    if isinstance(saving, UnknownSaving):
        return msgspec.structs.replace(part, evidence=saving.code)
    found = saving.saving
    split = {} if saving.split is None else _split(found, saving.split)
    return msgspec.structs.replace(
        part,
        evidence="nothing_changed" if saving.is_unchanged else "measured",
        baseline_energy_j=part.energy_j / (1 - found.saved_energy_ratio),
        baseline_carbon_g=_baseline(part.carbon_g, found),
        baseline_cost=_baseline(part.cost, found),
        baseline_duration_s=part.duration_s / found.slowdown_ratio,
        saved_ratio=found.saved_ratio,
        saved_ci90_ratio=saving.saved_ci90_ratio,
        saved_energy_ratio=found.saved_energy_ratio,
        saved_energy_ci90_ratio=saving.saved_energy_ci90_ratio,
        slowdown_ratio=found.slowdown_ratio,
        slowdown_ci90_ratio=saving.slowdown_ci90_ratio,
        **split,
        **({} if saving.pinned is None else {f"pinned_{name}": value for name, value in asdict(saving.pinned).items()}),
    )


def _split(found: Saving, halves: Split) -> dict[str, float]:
    """Return the parts of a saving, each with the half-width of its interval, by field."""
    ratios = {f"saved_{part}_ratio": getattr(found, f"{part}_ratio") for part in SPLIT}
    return ratios | {f"saved_{part}_ci90_ratio": getattr(halves, f"{part}_ci90_ratio") for part in SPLIT}


def _baseline(spent: float | None, found: Saving) -> float | None:
    """Return the carbon [g] or the cost of the same work at the prior limit; the run itself may have used none."""
    if spent is None:
        return None
    return spent / (1 - found.saved_ratio) if found.saved_ratio < 1 else carbon_g(found.baseline_signal_energy, 1.0)


def summed(own: RunEnergy, others: Iterable[RunEnergy]) -> RunEnergy:
    """Return the energy of the whole run: the leader's part and those of the other nodes."""
    return reduce(_plus, others, own)


def _plus(whole: RunEnergy, part: RunEnergy) -> RunEnergy:
    sums: dict[str, float | None] = {}
    for name in SUMMED:
        a, b = getattr(whole, name), getattr(part, name)
        sums[name] = None if a is None or b is None else a + b
    if whole.work_unit != part.work_unit:  # tokens and images have no sum
        sums |= {"work": None, "total_work": None}
    incomplete = list(dict.fromkeys([*whole.incomplete, *part.incomplete]))
    limit_w = _mean_power_limit_w(whole, part)
    unmeasured_s = max(whole.unmeasured_s or 0.0, part.unmeasured_s or 0.0) or None
    total = msgspec.structs.replace(
        whole, **sums, incomplete=incomplete, power_limit_w=limit_w, unmeasured_s=unmeasured_s
    )
    if not part.n_gpus:
        return total
    return _with_joint_saving(total, [whole, part] if whole.n_gpus else [part])


def _with_joint_saving(total: RunEnergy, parts: Sequence[RunEnergy]) -> RunEnergy:
    """Return the sum of parts with what they have saved; without, where that is not known of one of them."""
    have_one_signal = len({(each.carbon_g is None, each.cost is None) for each in parts}) == 1
    if not (have_one_signal and all(_is_known(each) for each in parts)):
        evidence = "other_nodes" if parts[0].evidence in KNOWN_EVIDENCE else parts[0].evidence
        return msgspec.structs.replace(total, **_NOTHING_KNOWN, evidence=evidence)
    if all(each.evidence == "nothing_changed" for each in parts):
        return with_saving(total, _UNCHANGED)
    energy = _joint_ratio(parts, "saved_energy", [each.energy_j for each in parts])
    name = next((name for name in ("carbon_g", "cost") if getattr(total, name) is not None), "energy_j")
    saved = _joint_ratio(parts, "saved", [getattr(each, name) for each in parts])
    slowest = max(parts, key=lambda each: each.slowdown_ratio or 0.0)  # the nodes wait for each other
    if energy is None or saved is None or not (slowest.slowdown_ratio or 0.0) >= LEAST_REST_RATIO:
        return msgspec.structs.replace(total, **_NOTHING_KNOWN, evidence="no_baseline")
    if max(energy.ci90_ratio, saved.ci90_ratio, slowest.slowdown_ci90_ratio or 0.0) > MAX_CI90_RATIO:
        return msgspec.structs.replace(total, **_NOTHING_KNOWN, evidence="too_early")
    return msgspec.structs.replace(
        total,
        evidence="measured",
        baseline_energy_j=energy.baseline,
        baseline_carbon_g=None if total.carbon_g is None else saved.baseline,
        baseline_cost=None if total.cost is None else saved.baseline,
        baseline_duration_s=total.duration_s / (slowest.slowdown_ratio or 1.0),
        saved_ratio=saved.ratio,
        saved_ci90_ratio=saved.ci90_ratio,
        saved_energy_ratio=energy.ratio,
        saved_energy_ci90_ratio=energy.ci90_ratio,
        slowdown_ratio=slowest.slowdown_ratio,
        slowdown_ci90_ratio=slowest.slowdown_ci90_ratio,
        **_joint_split(parts, saved.baselines),
        **_joint_pinned(parts),
    )


def _is_known(part: RunEnergy) -> bool:
    """Return whether a part, which may be of an older controller, has all its ratios and their intervals."""
    names = ("saved", "saved_energy", "slowdown")
    return part.evidence in KNOWN_EVIDENCE and all(
        getattr(part, f"{name}_{end}") is not None for name in names for end in ("ratio", "ci90_ratio")
    )


def _joint_pinned(parts: Sequence[RunEnergy]) -> dict[str, float | None]:
    """Return what a pin has cost on several nodes, which wait for each other; None where one does not know."""
    names = ("pinned_extra_s", "pinned_extra_ci90_s", "pinned_extra_energy_j", "pinned_extra_energy_ci90_j")
    if any(getattr(part, name) is None for part in parts for name in names):
        return dict.fromkeys(names)
    slowest = max(parts, key=lambda part: part.pinned_extra_s or 0.0)
    energies = {name: sum(getattr(part, name) for part in parts) for name in names[2:]}
    return {name: getattr(slowest, name) for name in names[:2]} | energies


def _joint_split(parts: Sequence[RunEnergy], baselines: Sequence[float]) -> dict[str, float | None]:
    """Return the parts of what several nodes have saved, weighted by their baselines; None where one does not know."""
    names = [f"saved_{part}_{end}" for part in SPLIT for end in ("ratio", "ci90_ratio")]
    if any(getattr(part, name) is None for part in parts for name in names):
        return dict.fromkeys(names)
    whole = sum(baselines)
    return {
        name: sum(each * getattr(part, name) for each, part in zip(baselines, parts, strict=True)) / whole
        for name in names
    }


class _Joint(NamedTuple):
    """What several parts have saved together: the share, the half-width of its interval, and the baseline."""

    ratio: float
    ci90_ratio: float
    baselines: Sequence[float]

    @property
    def baseline(self) -> float:
        """Return that of all parts."""
        return sum(self.baselines)


def _joint_ratio(parts: Sequence[RunEnergy], name: str, amounts: Sequence[float]) -> _Joint | None:
    """Return the joint of a ratio; errors may have the same cause on each node, and add up. None: no baseline."""
    ratios = [getattr(part, f"{name}_ratio") for part in parts]
    halves = [getattr(part, f"{name}_ci90_ratio") for part in parts]
    if any(1 - ratio < LEAST_REST_RATIO for ratio in ratios):
        return None
    baselines = [each / (1 - ratio) for each, ratio in zip(amounts, ratios, strict=True)]
    baseline = sum(baselines)
    if not baseline > 0:
        return None
    half_ratio = sum(abs(each) * half for each, half in zip(baselines, halves, strict=True)) / baseline
    return _Joint(ratio=1 - sum(amounts) / baseline, ci90_ratio=half_ratio, baselines=baselines)


def _mean_power_limit_w(*parts: RunEnergy) -> float | None:
    """Return the mean limit of the GPUs of all parts [W]; None where one of them is not known."""
    n_gpus = sum(part.n_gpus for part in parts)
    if not n_gpus or any(part.power_limit_w is None for part in parts if part.n_gpus):
        return None
    return sum(part.n_gpus * (part.power_limit_w or 0.0) for part in parts) / n_gpus


def _n_epochs(log: RankLog) -> tuple[int, int]:
    return log.n_epochs, log.epochs


def _essence(part: NodeProfile) -> tuple[object, ...]:
    """Return what differs between messages of a node that are worth publishing, but for small changes of its curve."""
    return part.state, part.reason, part.n_gpus, part.n_ranks, tuple(entry.power_limit_w for entry in part.points)


def _has_moved(points: list[NodeProfileEntry], published: list[NodeProfileEntry]) -> bool:
    return any(
        abs(now.power_w / then.power_w - 1) > CHANGED_RATIO
        or abs(now.iterations_per_s / then.iterations_per_s - 1) > CHANGED_RATIO
        or _has_become_known(now.energy_ci90_ratio, then.energy_ci90_ratio)
        for now, then in zip(points, published, strict=True)
    )


def _has_become_known(now_ratio: float | None, then_ratio: float | None) -> bool:
    """Return whether an interval is there or gone, or is another one by a tenth and more."""
    if now_ratio is None or then_ratio is None:
        return now_ratio is not then_ratio
    return abs(now_ratio - then_ratio) > NARROWED_RATIO * then_ratio
