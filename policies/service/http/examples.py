"""Examples of what is sent over HTTP: real records, so that they are what they say."""

from typing import Final

from policies.service.http.calls import RunRegistration
from policies.service.records import IterationTime, Job, JobExport, JobSettings, Result, Timing, Trial

JOB: Final = "resnet50"
RUN: Final = "night-17"

ASK: Final = RunRegistration(run=RUN, batch_sizes=(32, 64, 128, 256, 512, 1024), default_batch_size=256)
SETTINGS: Final = JobSettings(eta=1.0)
PROGRESS: Final = Result(epochs=3, energy_j=2.1e6, duration_s=3_600.0, max_power_w=600.0)
REACHED: Final = Result(
    outcome="reached",
    epochs=12,
    reached_epochs=12,
    energy_j=8.4e6,
    duration_s=14_400.0,
    max_power_w=600.0,
    gpu_model="NVIDIA A40",
    n_gpus=2,
)
TIMED: Final = Timing(
    times=(
        IterationTime(batch_size=32, iteration_time_s=0.021),
        IterationTime(batch_size=64, iteration_time_s=0.031),
        IterationTime(batch_size=128, iteration_time_s=0.055),
    ),
    too_large=256,
    batch_size=128,
)
TOO_LARGE: Final = Result(outcome="failed", failure="CUDA out of memory")
EXPORT: Final = JobExport(
    job=Job(name=JOB, batch_sizes=ASK.batch_sizes, default_batch_size=256, created_at_s=1_795_000_000.0),
    trials=(
        Trial(
            job=JOB,
            run=RUN,
            recurrence=0,
            batch_size=256,
            state="reached",
            reason="default_first",
            detail="nothing is known yet",
            requested_at_s=1_795_000_000.0,
            heard_at_s=1_795_014_400.0,
            ended_at_s=1_795_014_400.0,
            lease_s=600.0,
            result=REACHED,
        ),
    ),
)
