"""A policy service as a process of its own: `service_process CONFIG_JSON STATE_DIR`; it ends at SIGTERM."""

import asyncio
import logging
import sys
from pathlib import Path

import msgspec

from controller.runtime.stop_signals import stopped_by_signals
from policies.service.app import run_service
from policies.service.config import PolicyConfig


async def _run(config: PolicyConfig, state_dir: Path) -> None:
    stop = asyncio.Event()
    with stopped_by_signals(stop.set):
        await run_service(config, state_dir=state_dir, version="0", stop=stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=PolicyConfig), Path(sys.argv[2])))
