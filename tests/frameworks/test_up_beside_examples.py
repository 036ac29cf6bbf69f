"""`gridchase up` with the simulated GPU beside the examples: what it says of a run is what the simulation knows.

Of a run of a minute that is what it has used. What was saved is not told yet, although its limit was lowered.

The examples train for longer, which is all that is changed in them; each of their steps lasts as long as the simulated
GPU asks at its present limit (`trainings/on_simulated_gpu.py`). Configuration and logging are the default ones.
"""

import getpass
import json
import logging
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from publishers.messages.codec import decode
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import Topics
from publishers.training.reporting.run_summary import summarize
from tests.frameworks.process import ROOT, TRAININGS, environment, train
from tests.live.conftest import free_port, wait_until

STEPS_AN_EPOCH: Final = {
    "plain_torch": 32,
    "transformers_trainer": 16,
    "lightning_trainer": 16,
    "accelerate_loop": 16,
    "keras_fit": 28,
    "flax_loop": 32,
}
N_STEPS: Final = 500
"""Enough for the curve, and for twenty seconds of plans on it; eight looks would take a quarter of an hour."""
TOLERANCE: Final = 0.03
"""The run begins before its first forward pass, and is accounted for between readings of the meter."""
_TIMEOUT_S: Final = 60.0


class RunningUp:
    """`gridchase up`, and the final records of the runs that it has heard."""

    def __init__(self, folder: Path) -> None:
        self.events, self.log_file = folder / "events", folder / "up.log"
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._finals: dict[str, list[RunEnergy]] = {}
        self._heard = threading.Condition()
        settings = ("gpu.backend=simulation", f"bus.url={self.url}", f"node.state_dir={folder}/state", "http.port=-1")
        options = [word for setting in settings for word in ("--set", setting)]
        program = str(Path(__file__).with_name("up_on_simulated_gpu.py"))
        with self.log_file.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, program, str(self.events), "up", "--no-policy", "--no-web", *options],
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=folder,
            )
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._client.on_connect = lambda client, *_: client.subscribe(Topics().run_filter("energy"), qos=1) and None
        self._client.on_message = self._note

    def listen(self) -> None:
        """Wait until its broker and its controller are there, and listen."""
        wait_until(lambda: "training here needs" in self.log, _TIMEOUT_S)
        wait_until(lambda: "connected to the broker" in self.log, _TIMEOUT_S)
        self._client.connect("127.0.0.1", self.port)
        self._client.loop_start()

    def close(self) -> int | None:
        """Stop it as its user would, by Ctrl-C; return how it ended."""
        self._client.disconnect()
        self._client.loop_stop()
        try:
            self._child.send_signal(signal.SIGINT)
            return self._child.wait(_TIMEOUT_S)
        finally:
            self._child.kill()
            self._child.wait(_TIMEOUT_S)

    def final_records(self, job: str) -> list[RunEnergy]:
        """Wait for a final record of a job, and return all of them."""
        with self._heard:
            self._heard.wait_for(lambda: job in self._finals, _TIMEOUT_S)
            return self._finals.get(job, [])

    @property
    def log(self) -> str:
        """Return what it has said."""
        return self.log_file.read_text(encoding="utf-8")

    def _note(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        record = decode(bytes(message.payload), RunEnergy)
        if record.final:
            with self._heard:
                self._finals.setdefault(str(record.job), []).append(record)
                self._heard.notify_all()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """Run it, and stop it after the last example; all it has to tell are changes."""
    running = RunningUp(tmp_path_factory.mktemp("up"))
    try:
        running.listen()
        yield running
    finally:
        exit_code = running.close()
    assert exit_code == 0, running.log
    assert not re.search("ERROR|Traceback", running.log), running.log


@pytest.mark.parametrize("name", STEPS_AN_EPOCH)
def test_what_a_run_is_said_to_have_cost_is_what_the_simulation_knows(name: str, up: RunningUp, tmp_path: Path) -> None:
    n_epochs = round(N_STEPS / STEPS_AN_EPOCH[name])
    script, books_file = tmp_path / f"{name}.py", tmp_path / "books"
    text, n_changes = re.subn(
        r"(EPOCHS = |epochs=)2\b",
        rf"\g<1>{n_epochs}",
        (ROOT / "examples" / script.name).read_text(encoding="utf-8"),
    )
    assert n_changes == 1
    script.write_text(text, encoding="utf-8")
    program = [sys.executable, str(TRAININGS / "on_simulated_gpu.py"), str(up.events), str(books_file), str(script)]
    ours = {"GRIDCHASE_JOB": name, "GRIDCHASE_BROKER": up.url, "LOGNAME": getpass.getuser()}
    outcome = train(program, tmp_path, KERAS_BACKEND="jax", **ours)
    assert outcome.exit_code == 0, outcome.stderr
    books = json.loads(books_file.read_text(encoding="utf-8"))

    record = up.final_records(name)[-1]  # beside those of a machine that stood still for a minute
    assert len({each.run for each in up.final_records(name)}) == 1
    assert record.state == "finished"
    assert record.iterations == books["n_steps"] == n_epochs * STEPS_AN_EPOCH[name]
    assert books["slowdown_ratio"] > 1.01
    summary = summarize(name, record.run, record, unmeasured=("", ""))
    logging.getLogger(__name__).info("simulated: %s; published: %s", books, summary)
    assert record.duration_s == pytest.approx(books["duration_s"], rel=TOLERANCE), (record, books, up.log)
    assert record.energy_j == pytest.approx(books["energy_j"], rel=TOLERANCE), (record, books, up.log)
    assert (record.evidence, record.slowdown_ratio, record.saved_ratio) == ("too_early", None, None), (record, up.log)
    assert "Wh, too early to tell what was saved" in str(summary)
    assert f"gridchase: {summary}" in outcome.stderr.splitlines(), outcome.stderr
