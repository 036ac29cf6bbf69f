"""What each operation of the HTTP API does: a call in, records out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from policies.service.errors import PolicyError, UnknownJobError
from policies.service.http.calls import AnyRequest, ApiRequest, ExportQuery, NoQuery, RunRegistration, TrialsQuery
from policies.service.http.service import Liveness, Readiness, Reply, Service
from policies.service.records import (
    ENDED,
    ImportCounts,
    Job,
    JobExport,
    JobSettings,
    JobSummary,
    Posterior,
    Result,
    Timing,
    Trial,
    TrialUpdate,
)

PROBE_TIMEOUT_S: Final = 2.0
"""For a look whether the database answers."""
_LOGGER = logging.getLogger(__name__)


async def list_jobs(service: Service, _: AnyRequest) -> list[JobSummary]:
    """Return all jobs."""
    return await service.desk.jobs()


async def show_job(service: Service, call: AnyRequest) -> Job:
    """Return a job."""
    return await service.desk.job(call.job)


async def configure_job(service: Service, call: ApiRequest[NoQuery, JobSettings]) -> Job:
    """Replace what a job has of its own."""
    job = await service.desk.configure(call.job, call.body)
    _LOGGER.info("job %s: %s has set %s", call.job, call.writer, msgspec.json.encode(job.settings).decode())
    return job


async def forget_job(service: Service, call: AnyRequest) -> None:
    """Drop a job with all that was learned of it."""
    await service.desk.forget(call.job)
    _LOGGER.info("job %s: %s has had it forgotten, with its trials", call.job, call.writer)


async def show_posterior(service: Service, call: AnyRequest) -> Posterior:
    """Return what is believed of a job's batch sizes."""
    return await service.desk.posterior(call.job)


async def list_trials(service: Service, call: ApiRequest[TrialsQuery, None]) -> list[Trial]:
    """Return a job's newest trials."""
    before = None if call.query.before is msgspec.UNSET else call.query.before
    return await service.desk.trials(call.job, limit=call.query.limit, before=before)


async def ask(service: Service, call: ApiRequest[NoQuery, RunRegistration]) -> Trial:
    """Return a run's trial, and count how long it took."""
    now, asked = asyncio.get_running_loop().time, call.body
    begun_s = now()
    trial = await service.desk.ask(
        call.job,
        asked.run,
        batch_sizes=asked.batch_sizes,
        default_batch_size=asked.default_batch_size,
        now_s=call.now_s,
    )
    service.metrics.answered(trial.reason, over="http", answer_s=now() - begun_s)
    return trial


async def show_trial(service: Service, call: AnyRequest) -> Trial:
    """Return a run's trial."""
    return await service.desk.trial(call.job, call.run)


async def tell(service: Service, call: ApiRequest[NoQuery, Result]) -> TrialUpdate:
    """Take in what is known of a run."""
    told = await service.desk.tell(call.job, call.run, call.body, now_s=call.now_s)
    service.metrics.told(over="http")
    if told.trial.state in ENDED and call.body.outcome is not None:
        service.metrics.ended(told.trial.state)
    return told


async def time(service: Service, call: ApiRequest[NoQuery, Timing]) -> Trial:
    """Take in what a run has timed before its training."""
    trial = await service.desk.time(call.job, call.run, call.body, now_s=call.now_s)
    service.metrics.told(over="http")
    return trial


async def export(service: Service, call: ApiRequest[ExportQuery, None]) -> list[JobExport] | AsyncIterator[bytes]:
    """Return a job with its trials, or all jobs one after the other, so that no more than one is held in memory."""
    if call.query.job is not msgspec.UNSET:
        return await service.desk.export(call.query.job)
    return _exported(service, [job.name for job in await service.desk.jobs()])


async def _exported(service: Service, names: Sequence[str]) -> AsyncIterator[bytes]:
    separator = b"["
    for name in names:
        try:
            found = await service.desk.export(name)
        except UnknownJobError:
            continue  # forgotten meanwhile
        for one in found:
            yield separator + msgspec.json.encode(one)
            separator = b",\n"
    yield b"[]" if separator == b"[" else b"]"


async def import_(service: Service, call: ApiRequest[NoQuery, list[JobExport]]) -> ImportCounts:
    """Take in jobs with their trials."""
    counts = await service.desk.import_(call.body, now_s=call.now_s)
    _LOGGER.info("%s has imported %d jobs with %d trials", call.writer, counts.n_jobs, counts.n_trials)
    return counts


async def live(_: Service, __: AnyRequest) -> Liveness:
    """Return that the process lives."""
    return Liveness()


async def ready(service: Service, _: AnyRequest) -> Readiness | Reply:
    """Return whether the service can do its work: the database can be read and written, and all else is well, too."""
    troubles = tuple(trouble for trouble in (await _store_trouble(service), service.is_ready()) if trouble)
    answer = Readiness(ready=not troubles, troubles=troubles)
    return Reply(body=answer, status=503) if troubles else answer


async def _store_trouble(service: Service) -> str | None:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await service.desk.check()
    except PolicyError as error:
        return str(error)
    except TimeoutError:
        return f"the database does not answer in {PROBE_TIMEOUT_S:g} s"
    return None


async def show_metrics(service: Service, _: AnyRequest) -> bytes:
    """Return the counters, as Prometheus reads them."""
    return service.metrics.text()


async def show_document(service: Service, _: AnyRequest) -> bytes:
    """Return the OpenAPI document."""
    return service.document
