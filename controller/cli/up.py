"""`gridchase up`: a broker, the controller and the policy service in one process, the page in another, until a stop."""

import argparse
import asyncio
import logging
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from controller.app import run_controller
from controller.cli.broker import MQTT_PORT, listens, own_address, wait_for_broker_end
from controller.cli.configuration import TRY_SIMULATION, add_configuration, add_simulation
from controller.cli.output import config_line
from controller.cli.policy.config import load_policy_config, policy_state_dir
from controller.cli.run import run_until_stopped
from controller.cli.wiring import opened_node, restore_command
from controller.config import Config, load_config
from controller.errors import BackendError, ConfigError
from controller.runtime.child_process import start_module, stop_child
from controller.runtime.stop_signals import stopped_by_signals
from controller.web.config import load_web_config
from gridchase.cli.verb import VERSION
from policies.service.app import Served, run_service
from policies.service.config import PolicyConfig
from policies.service.errors import PolicyError
from publishers.mqtt.bus_config import BusConfig
from publishers.mqtt.embedded_broker import embedded_broker

BROKER_ENDED: Final = (
    "power limits go back, and this ends. Start `gridchase up` again: trainings reconnect by themselves. A mosquitto "
    "that runs as a service is used instead of one of our own"
)

ASKS_NOBODY: Final = (
    "orders.over_bus = true: anybody on this machine could send orders, as the broker of `up` asks nobody for a"
    " password; use `gridchase pin`, or start a broker with access rules before, which is used then"
)

PageCommand = Callable[[Config], Sequence[str]]
"""Returns the module of the page beside a controller, and its arguments."""

_LOGGER = logging.getLogger(__name__)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_configuration(verb)
    add_simulation(verb)
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument(
        "--policy-config",
        type=Path,
        metavar="FILE",
        help="the policy service's TOML file; deploy/policy.toml shows every key",
    )
    choice.add_argument("--no-policy", action="store_true", help="do not run the policy service")
    page = verb.add_mutually_exclusive_group()
    page.add_argument(
        "--web-config", type=Path, metavar="FILE", help="the page's TOML file; deploy/web.toml shows every key"
    )
    page.add_argument("--no-web", action="store_true", help="do not serve the page")

    def do(options: argparse.Namespace) -> int:
        config = load_config(options.config, options.set)
        policy_config = None if options.no_policy else load_policy_config(options.policy_config)
        if options.web_config is not None:  # tells every fault before anything starts
            _warn_of_other_bus(options.web_config, load_web_config(options.web_config).bus, config, "page")
        page = None if options.no_web else partial(page_command, file=options.web_config)
        return up(config, policy_config, policy_file=options.policy_config, page=page)

    verb.set_defaults(outlives_terminal=True, defers_stops=True, do=do)


def up(
    config: Config,
    policy: PolicyConfig | None = None,
    *,
    policy_file: Path | None = None,
    page: PageCommand | None = None,
) -> int:
    """Run a broker, the controller, the policy service and the page until a stop signal; an existing broker is used.

    Args:
        config: of the controller; the policy service is on the same bus.
        policy: of the policy service; None: without it.
        policy_file: where that was read from.
        page: returns the command of the page, a process of its own; None: without it.
    """
    if policy is not None:
        _warn_of_other_bus(policy_file, policy.bus, config, "policy service")
    jobs_command = _jobs_command(config, policy_file)
    print(
        "power limits come back when this ends, also by Ctrl-C or with its terminal; after kill -9 or a crash of the"
        f" machine, at the next start or by `{restore_command(config)}`",
        flush=True,
    )
    if config.gpu.backend == "simulation":
        print("the GPU is simulated: its limits, power, energy and savings are not of this machine", flush=True)
    _LOGGER.info("configuration: %s", config_line(config))
    run_until_stopped(partial(_up, policy=policy, jobs_command=jobs_command, page=page), config)
    return 0


def _warn_of_other_bus(file: Path | None, bus: BusConfig, config: Config, what: str) -> None:
    if bus not in (BusConfig(), config.bus):
        _LOGGER.warning("%s: [bus] is not used: `up` runs the %s on the controller's bus", file, what)


async def _up(config: Config, *, policy: PolicyConfig | None, jobs_command: str, page: PageCommand | None) -> None:
    """Start the broker of the configuration on this machine, unless one listens there, then run the rest."""
    address = own_address(config.bus.url)
    if address is None:
        fault = f"bus.url = {config.bus.url!r}: `up` runs its own broker on this machine; use `gridchase controller`"
        raise ConfigError([fault])
    host, port = address
    stop = asyncio.Event()
    with stopped_by_signals(stop.set):
        if await listens(host, port):
            print(f"using the broker that already listens at {config.bus.url}", flush=True)
            async with _page_beside(page, config):
                await _run_both(config, policy, stop, jobs_command)
            return
        if config.orders.over_bus:
            raise ConfigError([ASKS_NOBODY])
        async with embedded_broker(host=host, port=port) as running:
            setting = "no setting" if port == MQTT_PORT else f"GRIDCHASE_BROKER={running.url}"
            print(f"{running.kind} {running.version} at {running.url}; training here needs {setting}", flush=True)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(wait_for_broker_end(running, BROKER_ENDED), name="broker")
                on_bus = _with_url(config, running.url)
                async with _page_beside(page, on_bus):
                    await _run_both(on_bus, policy, stop, jobs_command)
                watching.cancel()


async def _run_both(config: Config, policy: PolicyConfig | None, stop: asyncio.Event, jobs_command: str) -> None:
    async with opened_node(config) as node, asyncio.TaskGroup() as tasks:
        if policy is not None:
            tasks.create_task(_serve_policy(config, policy, stop, jobs_command), name="policy service")
        try:
            await run_controller(node, stop=stop)
        except BackendError as error:
            raise type(error)(f"{error}\n{TRY_SIMULATION}") from error


def page_command(config: Config, file: Path | None = None) -> list[str]:
    """Return the module and the arguments of the page, on the controller's bus.

    Args:
        config: of the controller; without a file, the history is below its state directory, as with `gridchase web`.
        file: the page's configuration.
    """
    given = {f"bus.{key}": value for key, value in msgspec.structs.asdict(config.bus).items()}
    if file is None:
        given["web.state_dir"] = str(Path(config.node.state_dir) / "web")
    options = [] if file is None else ["--config", str(file)]
    # Quoted: a user may be called 12345.
    options += [word for key, value in given.items() for word in ("--set", f"{key}={_toml_text(value)}")]
    return ["controller", "--log-level", "warning", "web", "--until-stdin-closes", *options]


def _toml_text(text: str) -> str:
    return msgspec.json.encode(text).decode()


@asynccontextmanager
async def _page_beside(page: PageCommand | None, config: Config) -> AsyncIterator[None]:
    """Run the page beside the body, and end it after that: limits do not wait for it."""
    async with asyncio.TaskGroup() as tasks:
        running = None if page is None else tasks.create_task(_run_page(page(config)), name="page")
        yield
        if running is not None:
            running.cancel()


async def _run_page(command: Sequence[str]) -> None:
    """Run the page's process until cancelled; its failure is logged and does not stop us.

    It ends when its stdin closes: also if this process is killed.
    """
    try:
        child = await start_module(*command)
    except OSError as error:
        _LOGGER.error("no page: %s; the controller continues", error)
        return
    try:
        status = await child.wait()
        _LOGGER.error("the page has ended with status %d; the controller continues", status)
    finally:
        await stop_child(child)


async def _serve_policy(config: Config, policy: PolicyConfig, stop: asyncio.Event, jobs_command: str) -> None:
    """Run the policy service on the controller's bus until `stop`; its failure is logged and does not stop us."""
    try:
        await run_service(
            msgspec.structs.replace(policy, bus=config.bus),
            state_dir=Path(config.node.state_dir) / "policy",
            version=VERSION,
            stop=stop,
            started=partial(_print_policy, policy, jobs_command),
        )
    except (PolicyError, OSError) as error:
        _LOGGER.error("no policy service: %s; the controller continues", error)


def _print_policy(policy: PolicyConfig, jobs_command: str, served: Served) -> None:
    where = f"HTTP at {served.http_url}"
    if not served.http_url:
        where = (
            "no HTTP" if policy.http.port < 0 else f"no HTTP: {policy.http.host}:{policy.http.port} is not available"
        )
    print(f"policy service: batch sizes of recurring jobs, on the bus; {where}; see: {jobs_command}", flush=True)


def _jobs_command(config: Config, policy_file: Path | None) -> str:
    """Return the command that lists the jobs of this policy service, with the options for the same database."""
    words = ["gridchase", "policy", "jobs"]
    if policy_file is not None:
        words += ["--config", str(policy_file)]
    state_dir = Path(config.node.state_dir) / "policy"
    if state_dir != policy_state_dir(None):
        words += ["--state-dir", str(state_dir)]
    return shlex.join(words)


def _with_url(config: Config, url: str) -> Config:
    return msgspec.structs.replace(config, bus=msgspec.structs.replace(config.bus, url=url))
