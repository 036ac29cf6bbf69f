"""The messages that the controller publishes, and the command of the policy service: flat JSON for dashboards."""

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from publishers.messages.codec import (
    MAX_ITEMS,
    Amount,
    BatchSize,
    Count,
    Message,
    Name,
    Number,
    PowerW,
    Ratio,
    Sentence,
    Text,
    TimeNs,
    TimeS,
)

SIMULATED: Final = "(simulated)"
"""The names of GPU models end so where no board is measured."""


class GpuDescription(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU of a node, with its limits [W]; `prior_power_limit_w` is restored in the end."""

    uuid: Name
    index: Count
    model: Text
    min_power_limit_w: PowerW | None = None
    max_power_limit_w: PowerW | None = None
    default_power_limit_w: PowerW | None = None
    prior_power_limit_w: PowerW | None = None


class NodeStatus(Message, frozen=True, kw_only=True):
    """A node's controller: retained; its last will says `offline`.

    `boot_id` is that of the machine, which the status of training processes carries, too.
    """

    state: Literal["online", "offline"]
    version: Text
    time_s: TimeS | None = None
    node: Name | None = None
    boot_id: Text | None = None
    host: Text | None = None
    gpus: Annotated[list[GpuDescription], Meta(max_length=64)] = field(default_factory=list)


class GpuEnergy(Message, frozen=True, kw_only=True):
    """The power of one GPU, and the energy it has used since the controller started.

    `time_s` is when it was measured, and `started_at_s` when counting began: a later one is another controller's, whose
    counters began at 0. Where nothing could be measured since the last message, all that is measured is absent.
    """

    time_s: TimeS
    node: Name | None = None
    gpu_uuid: Name | None = None
    gpu_index: Count | None = None
    energy_j: Amount | None = None
    started_at_s: TimeS | None = None
    power_w: PowerW | None = None
    power_limit_w: PowerW | None = None
    unmeasured_s: Amount = 0.0
    carbon_g: Amount | None = None
    cost: Number | None = None
    currency: Text | None = None
    carbon_intensity_g_per_kwh: Amount | None = None
    utilization_ratio: Annotated[float, Meta(ge=0, le=1)] | None = None
    temperature_c: Annotated[float, Meta(ge=-100, le=200)] | None = None
    job: Name | None = None


class LimitChange(Message, frozen=True, kw_only=True):
    """A power limit that was written, or left alone, and why: `reason` is a stable code, `detail` a sentence.

    `speed_ratio` is the rate of the job at this limit over that at the highest it may have, where its curve
    is known.
    """

    time_s: TimeS
    node: Name | None = None
    gpu_uuid: Name | None = None
    gpu_index: Count | None = None
    reason: Name
    detail: Sentence
    power_limit_w: PowerW | None = None
    requested_power_limit_w: PowerW | None = None
    enforced_power_limit_w: PowerW | None = None
    previous_power_limit_w: PowerW | None = None
    job: Name | None = None
    signal: Text | None = None
    speed_ratio: Ratio | None = None


class ProfileEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measured point of a job's curve; `…_ci…` is the half-width of the 95 % confidence interval."""

    power_limit_w: PowerW
    power_w: PowerW
    iterations_per_s: Amount
    power_ci_w: PowerW | None = None
    iterations_per_s_ci: Amount | None = None
    n: Count = 0


class ProfileReport(Message, frozen=True, kw_only=True):
    """A job's curve, as far as it is measured; `reason` is why it is not, in state `not_profiled`: a stable code.

    Where the work of iterations is known, an iteration of the curve is `work_per_iteration` of it, in `work_unit`.
    """

    time_s: TimeS | None = None
    user: Text | None = None
    job: Name | None = None
    run: Name | None = None
    state: Literal["waiting", "profiling", "planned", "observing", "not_profiled"]
    gpu_model: Text
    n_gpus: Count
    points: Annotated[list[ProfileEntry], Meta(max_length=512)]
    batch_size: Count | None = None
    reason: Name | None = None
    work_per_iteration: Annotated[float, Meta(gt=0, le=1e20)] | None = None
    work_unit: Name | None = None


MAX_SCHEDULED: Final = 512
"""Entries of a schedule: more than a day of steps of five minutes."""


class ScheduleEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run is planned to do from a time on, until the next entry begins.

    Where two limits share the time, power and speed are means, and `second_ratio` is the share of the second.
    """

    starts_s: TimeS
    power_limit_w: PowerW
    power_w: PowerW
    speed_ratio: Ratio
    second_power_limit_w: PowerW | None = None
    second_ratio: Ratio | None = None
    paused_ratio: Ratio | None = None


class RunSchedule(Message, frozen=True, kw_only=True):
    """What the plan of a run expects of the next 24 hours, or of what is left of the run; cleared when it has no plan.

    `expected_slowdown_ratio` is how many times as long as at its highest limit the run will have been active, with the
    half-width of the 90 % interval: both or neither. So it is with what is expected to be saved until `until_s`, of
    what the same work takes at the highest limit from now on: `expected_saved_ratio` of carbon or cost (without a
    signal, of energy), `expected_saved_energy_ratio` of energy, each of the GPUs alone. `goal_…` say who has set its
    time budget or deadline, why, and until when, where a person has. `budget_since_s`: since when
    `max_slowdown_ratio` counts, where that is not the beginning of the run.
    """

    time_s: TimeS | None = None
    user: Text | None = None
    job: Name | None = None
    run: Name | None = None
    objective: Literal["slowdown", "eta", "deadline", "budget"]
    entries: Annotated[list[ScheduleEntry], Meta(max_length=MAX_SCHEDULED)]
    until_s: TimeS
    max_slowdown_ratio: Ratio | None = None
    deadline_s: TimeS | None = None
    budget: Amount | None = None
    expected_end_s: TimeS | None = None
    expected_slowdown_ratio: Ratio | None = None
    expected_slowdown_ci90_ratio: Ratio | None = None
    goal_by: Text | None = None
    goal_why: Text | None = None
    goal_until_s: TimeS | None = None
    budget_since_s: TimeS | None = None
    expected_saved_ratio: Number | None = None
    expected_saved_ci90_ratio: Amount | None = None
    expected_saved_energy_ratio: Number | None = None
    expected_saved_energy_ci90_ratio: Amount | None = None


class RunPlan(Message, frozen=True, kw_only=True):
    """The limit of a run on several nodes, published by the node of rank 0, followed by the others.

    It is repeated every `heartbeat_s` with the next `seq`; one that was received before, as a retained one may have
    been, does not count as a heartbeat. Without `power_limit_w` no limit is to be held.
    """

    exact: ClassVar[bool] = True

    user: Text | None = None
    job: Name | None = None
    run: Name
    node: Name
    seq: Count
    time_s: TimeS
    heartbeat_s: Annotated[float, Meta(ge=1, le=600)]
    reason: Name
    detail: Sentence
    gpu_model: Text
    max_power_limit_w: Annotated[float, Meta(gt=0, le=1e6)]
    power_limit_w: PowerW | None = None
    is_steady: bool = False
    signal: Text | None = None
    speed_ratio: Ratio | None = None


class NodeProfileEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The power of a node, and the rate of its slowest rank, while the plan of the run asked for a limit.

    `energy_ratio` is what an iteration needs at the highest limit over what it needs at this one, by looks, and
    `energy_ci90_ratio` the half-width of its 90 % interval; both or none.
    """

    power_limit_w: PowerW
    power_w: PowerW
    iterations_per_s: Amount
    active_s: Amount
    energy_ratio: Amount | None = None
    energy_ci90_ratio: Amount | None = None


class NodeProfile(Message, frozen=True, kw_only=True):
    """How one node follows the plan of a run, and what it measured meanwhile; `reason` is a stable code."""

    time_s: TimeS | None = None
    user: Text | None = None
    job: Name | None = None
    run: Name
    node: Name | None = None
    state: Literal["following", "waiting", "observing"]
    reason: Name
    detail: Sentence
    gpu_model: Text
    n_gpus: Count
    n_ranks: Count
    points: Annotated[list[NodeProfileEntry], Meta(max_length=64)]
    batch_size: Count | None = None


class RunEnergy(Message, frozen=True, kw_only=True):
    """What a run has used, and what the same work would have used at the prior limit (`baseline_…`).

    `evidence` is a stable code that says how well that is known: with `measured` and `nothing_changed`, baseline,
    savings and slowdown are there, each ratio with the half-width of its 90 % interval (`…_ci90_ratio`); with any other
    code, or without one, none of them is. The parts of `saved_ratio` (better limit, following the grid, measuring) add
    up to it; they are there where each is known to a point.
    `epochs` are those that its energy covers, from the first that was received for the most part; `epochs_missed` came
    before. `n_gpus` = 0 means that the run never held a GPU and was not measured: its zeros are no energy and no
    duration. `max_power_w` is the sum of its GPUs' prior power limits, over all nodes. `node`: of which it is a part.
    `incomplete` holds stable codes of what the record lacks. `would_save_ratio` is an estimate by an earlier
    curve, where the plan was only observed, with the half-width of its 90 % interval. `power_limit_w` is the present
    limit of its GPUs, on average, `speed_ratio` the rate that goes with it, as a share of full speed, and `reason` and
    `detail` say why they have it, as in `LimitChange`; once the run has ended, what they had last. `paused_s` is how
    long the training waited because it was asked to: a part of `duration_s` and, like the energy of that time, not of
    the baseline.
    `unmeasured_s` is for how long its GPUs could not be read: `energy_j` holds their last power for that time, but
    nothing for the time before they were first read. `ab_…`, in the final record of a whole run, where runs of its job
    are held out at the prior limit: of how many comparable runs, and what an iteration of the others saves of the
    energy and takes more of the time than one of those, with the ends of the 90 % intervals. `ab_more_runs` is how many
    more it takes until that energy is known to a point. `last_rank`, in the final record of a run that the controller
    has joined of several: the rank that ended last, which tells the end. `pinned_s` is for how long iterations ran at a
    limit that a person had pinned, `pinned_extra_…` what their work took beyond what the plan would have taken, all
    four or none; `pinned_until_s`, `pinned_by` and `pinned_why` are of the pin that is in force, and `pinned_gpu_uuid`
    is the GPU that it is for, if it is not the run's own.
    `signal_…` say by which signal its carbon or cost was last counted. `host_power_w` and `pue` are what its plan
    weighs beside the GPUs, where they are configured: no amount here has them. `work` is what its iterations were told
    to be, in `work_unit`, of `total_work` in all; absent where a rank does not tell its own.
    """

    time_s: TimeS | None = None
    user: Text | None = None
    job: Name | None = None
    run: Name
    node: Name | None = None
    state: Literal["running", "finished", "lost", "silent"]
    gpu_model: Text
    n_gpus: Count
    iterations: Count
    epochs: Count
    duration_s: Amount
    energy_j: Amount
    batch_size: Count | None = None
    reached: bool | None = None
    carbon_g: Amount | None = None
    cost: Number | None = None
    currency: Text | None = None
    baseline_energy_j: Amount | None = None
    baseline_carbon_g: Amount | None = None
    baseline_duration_s: Amount | None = None
    evidence: Name | None = None
    saved_ratio: Number | None = None
    saved_ci90_ratio: Amount | None = None
    saved_energy_ratio: Number | None = None
    saved_energy_ci90_ratio: Amount | None = None
    slowdown_ratio: Number | None = None
    slowdown_ci90_ratio: Amount | None = None
    baseline_cost: Number | None = None
    saved_better_limit_ratio: Number | None = None
    saved_better_limit_ci90_ratio: Amount | None = None
    saved_following_ratio: Number | None = None
    saved_following_ci90_ratio: Amount | None = None
    saved_measuring_ratio: Number | None = None
    saved_measuring_ci90_ratio: Amount | None = None
    max_power_w: PowerW | None = None
    epochs_missed: Count = 0
    would_save_ratio: Number | None = None
    would_save_ci90_ratio: Amount | None = None
    paused_s: Amount | None = None
    unmeasured_s: Amount | None = None
    power_limit_w: PowerW | None = None
    speed_ratio: Ratio | None = None
    reason: Name | None = None
    detail: Sentence | None = None
    ab_runs: Count | None = None
    ab_held_out_runs: Count | None = None
    ab_more_runs: Count | None = None
    ab_saved_energy_ratio: Number | None = None
    ab_saved_energy_lower_ratio: Number | None = None
    ab_saved_energy_upper_ratio: Number | None = None
    ab_slowdown_ratio: Amount | None = None
    ab_slowdown_lower_ratio: Amount | None = None
    ab_slowdown_upper_ratio: Amount | None = None
    pinned_s: Amount | None = None
    pinned_extra_s: Number | None = None
    pinned_extra_ci90_s: Amount | None = None
    pinned_extra_energy_j: Number | None = None
    pinned_extra_energy_ci90_j: Amount | None = None
    pinned_until_s: TimeS | None = None
    pinned_by: Text | None = None
    pinned_why: Text | None = None
    pinned_gpu_uuid: Name | None = None
    signal_kind: Literal["average", "marginal", "price"] | None = None
    signal_source: Text | None = None
    signal_zone: Text | None = None
    signal_unmeasured_s: Amount | None = None
    host_power_w: PowerW | None = None
    pue: Annotated[float, Meta(ge=1, le=5)] | None = None
    work: Amount | None = None
    total_work: Amount | None = None
    work_unit: Name | None = None
    incomplete: Annotated[list[Name], Meta(max_length=16)] = field(default_factory=list)
    last_rank: Count | None = None
    final: bool = False


KNOWN_EVIDENCE: Final = frozenset({"measured", "nothing_changed"})
"""With it a `RunEnergy` has numbers of what was saved, each ratio with its interval; with any other code, none.
A record without a code is of an older controller, whose numbers have no interval."""


class SignalValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value of the grid, in force from `starts_s` until the next one, with the 90 % interval of a forecast."""

    starts_s: TimeS
    value: Number
    estimated: bool = False
    lower: Number | None = None
    upper: Number | None = None


class GridSignal(Message, frozen=True, kw_only=True):
    """The grid of a zone: history and, from `forecast_from_s` on, forecast; and how far both can be trusted.

    `value` is the one in force now. The last value of the source ends at `known_until_s`; later ones are our estimates.
    """

    time_s: TimeS
    source: Text
    zone: Text
    kind: Literal["average", "marginal", "price"]
    unit: Text
    issued_at_s: TimeS
    state: Literal["fresh", "held", "forecast", "stale"]
    age_s: Amount
    value: Number | None = None
    values: Annotated[list[SignalValue], Meta(max_length=MAX_ITEMS)]
    detail: Sentence | None = None
    forecast_from_s: TimeS | None = None
    known_until_s: TimeS | None = None


TrialState = Literal["open", "running", "reached", "stopped", "failed", "lost"]
"""`open`: assigned, nothing reported yet; `lost`: its lease ran out, but a late result is still accepted; `reached`,
`stopped` and `failed` are the outcomes of `policies.batch_size.Observation`."""


class BatchSizeBelief(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the policy service believes of a batch size: medians, each with both ends of its 90 % credible interval.

    `cost_ratio` is the cost of a run to the target, relative to `JobPosterior.best_batch_size`. `n_runs` of it have
    ended; without any, all of it follows from its neighbours.
    """

    batch_size: BatchSize
    n_runs: Count = 0
    n_reached: Count = 0
    cannot_run: bool = False
    epochs: Amount | None = None
    epochs_lower: Amount | None = None
    epochs_upper: Amount | None = None
    cost_ratio: Amount | None = None
    cost_lower_ratio: Amount | None = None
    cost_upper_ratio: Amount | None = None


class JobTrial(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of a job's last runs: its batch size, why, and how it ended; `cost_ratio` as in `BatchSizeBelief`."""

    run: Name
    batch_size: BatchSize
    state: TrialState
    reason: Name
    requested_at_s: TimeS
    epochs: Count | None = None
    cost_ratio: Amount | None = None


MAX_TRIALS: Final = 20
"""The newest runs of a job that its posterior has."""


class JobPosterior(Message, frozen=True, kw_only=True):
    """What the policy service has learnt of a job's batch sizes: retained, and cleared where the job is deleted.

    Costs weigh energy by `eta` and time, at the highest power, by the rest. `best_batch_size` is that of least
    expected cost among those that have reached the target; without one, of all.
    """

    time_s: TimeS
    user: Text | None = None
    job: Name | None = None
    policy: Name
    eta: Annotated[float, Meta(ge=0, le=1)]
    default_batch_size: BatchSize
    next_batch_size: BatchSize
    next_reason: Name
    next_detail: Sentence
    best_batch_size: BatchSize | None = None
    n_observations: Count = 0
    beliefs: Annotated[list[BatchSizeBelief], Meta(max_length=256)]
    trials: Annotated[list[JobTrial], Meta(max_length=MAX_TRIALS)] = field(default_factory=list)


class Command(Message, frozen=True, kw_only=True):
    """A command to a run: `stop` by the policy service, `pause` and `resume` by the controller of rank 0's machine.

    `pause` and `resume` carry that machine's `boot_id`, and the `pause_id` of one pause, which ends once, for good. It
    holds until `until_ns`, by the clock of that machine, and longer only where it is sent again with a later one: so a
    controller that falls silent holds nobody. `for_s` is how long it was asked for, from when it begins [s].
    """

    time_s: TimeS | None = None
    user: Text | None = None
    job: Name | None = None
    run: Name | None = None
    command: Literal["stop", "pause", "resume"]
    reason: Sentence
    boot_id: Text | None = None
    node: Name | None = None
    pause_id: Name | None = None
    until_ns: TimeNs | None = None
    for_s: Amount | None = None


OrderAction = Literal["pin", "exempt", "release", "pause", "resume", "budget", "deadline", "reset"]


class Order(Message, frozen=True, kw_only=True):
    """What an operator orders of a run, or of a GPU and each run that has it.

    It is never retained, and obeyed within a minute of `time_s` or not at all. `pin` holds all GPUs of the run at
    `power_limit_w` until `until_s`, `exempt` at its prior limit; `release` ends either. `pause` asks a run that is
    pausable to wait, for `for_s` or until `until_s`; `resume` ends that. `budget` has its plan keep to
    `max_slowdown_ratio` from now on, `deadline` to `deadline_s`, in place of the configured objective; `reset` ends
    either. `by` is who orders it, as the sender says; who may send it is the broker's to say. `by_owner`: that is the
    user whose run it is, and no operator, whose pin he does not change. The answer carries the same `correlation`.
    """

    time_s: TimeS
    action: OrderAction
    correlation: Name
    by: Annotated[str, Meta(min_length=1, max_length=64)]
    why: Annotated[str, Meta(max_length=120)] = ""
    power_limit_w: PowerW | None = None
    until_s: TimeS | None = None
    for_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    max_slowdown_ratio: Annotated[float, Meta(ge=1, le=10)] | None = None
    deadline_s: TimeS | None = None
    by_owner: bool = False


class OrderResult(Message, frozen=True, kw_only=True):
    """What has become of an order; `reason` is a stable code, `detail` a sentence.

    It is `done` once the GPUs were read back, or the training says that it waits, or goes on.
    """

    time_s: TimeS
    user: Text | None = None
    job: Name | None = None
    run: Name | None = None
    node: Name | None = None
    gpu_uuid: Name | None = None
    action: OrderAction
    correlation: Name
    state: Literal["done", "refused", "failed"]
    reason: Name
    detail: Sentence
    power_limit_w: PowerW | None = None
    enforced_power_limit_w: PowerW | None = None
    until_s: TimeS | None = None
    for_s: Amount | None = None
    max_slowdown_ratio: Ratio | None = None
    deadline_s: TimeS | None = None


HEARD: Final = "heard"
"""The code of the first notice to a process: a controller hears it."""
JOINED: Final = "joined"
"""The code of the notice that a process is a rank of another run than its own: both compute on one GPU."""
OTHERS_RUN: Final = "others_run"
"""The code of the notice to a joined process that has finished before the others, whose last record is far off."""


class Notice(Message, frozen=True, kw_only=True):
    """What a controller has to tell a training process; `code` is stable, `detail` a sentence.

    `boot_id` is that of the controller's machine: each process heeds the notices of its own. With code `joined` the
    process is from now on rank `rank` of the run `joined`: its records are those of that run.
    """

    user: Text
    job: Name
    run: Name
    rank: Count
    node: Name
    boot_id: Text
    time_s: TimeS
    code: Name
    detail: Sentence
    joined: Name | None = None
