"""A training of the campaign: it speaks for this very process, from a thread, at the pace of the stub's GPUs."""

import os
import threading
import time
from array import array
from typing import Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from publishers.messages.codec import encode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import Iterations, RankStatus, pack_ends
from publishers.shared.boot_id import read_boot_id
from publishers.shared.process_identity import mark_this_thread, run_mark
from tests.live.nvml_stub.machine import StubMachine

FLUSH_S: Final = 0.25
HEARTBEAT_S: Final = 1.0
RUN: Final = RunKey("tester", "resnet50", "r1")


class CampaignTraining:
    """Publishes status and iterations of a run on every GPU of a machine, until it ends.

    Args:
        machine: whose GPUs it uses.
        port: of the broker.
    """

    def __init__(self, machine: StubMachine, port: int) -> None:
        self._gpus = [machine.gpu(index) for index in range(machine.raw.n_gpus)]
        self._boot_id = read_boot_id()
        self._started_at_s = time.time()
        self._n_iterations = self._seq = 0
        self._done = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.reconnect_delay_set(1, 1)
        self._client.will_set(self._topic("status"), self._status("lost"), qos=1, retain=True)
        self._client.connect_async("127.0.0.1", port)
        self._client.loop_start()
        for gpu in self._gpus:
            gpu.pids = frozenset({os.getpid()})
            gpu.busy = True
        self._thread = threading.Thread(target=self._work, name="training", daemon=True)
        self._thread.start()

    def end(self, state: str = "finished") -> None:
        """End, with a last status, or with none where `state` is empty."""
        self._done.set()
        self._thread.join()
        if state:
            self._client.publish(self._topic("status"), self._status(state), qos=1, retain=True)
        for gpu in self._gpus:
            gpu.pids = frozenset()
            gpu.busy = False

    def close(self) -> None:
        """Leave the broker, too."""
        if not self._done.is_set():
            self.end("")
        self._client.disconnect()
        self._client.loop_stop()

    def _work(self) -> None:
        mark_this_thread(run_mark(RUN))
        begin_ns = time.monotonic_ns()
        told_s = float("-inf")
        while not self._done.wait(FLUSH_S):
            if time.monotonic() - told_s >= HEARTBEAT_S:
                told_s = time.monotonic()
                self._client.publish(self._topic("status"), self._status("running"), qos=1, retain=True)
            step_ns = round(max(gpu.iteration_time_s() for gpu in self._gpus) * 1e9)
            ends_ns = array("q", range(begin_ns + step_ns, time.monotonic_ns(), step_ns))
            if ends_ns:
                self._publish(begin_ns, ends_ns)
                begin_ns = ends_ns[-1]

    def _publish(self, begin_ns: int, ends_ns: "array[int]") -> None:
        message = Iterations(
            run=RUN.run,
            seq=self._seq,
            first=self._n_iterations,
            begin_ns=begin_ns,
            end_ns=pack_ends(ends_ns),
            epoch=0,
            dropped=0,
        )
        self._seq += 1
        self._n_iterations += len(ends_ns)
        self._client.publish(self._topic("iterations"), encode(message), qos=0)

    def _topic(self, leaf: str) -> str:
        return Topics().rank(self._boot_id, RUN, 0, leaf)

    def _status(self, state: str) -> bytes:
        return encode(
            RankStatus(
                run=RUN.run,
                state=state,  # type: ignore[arg-type] # one of its words
                host="here",
                boot_id=self._boot_id,
                pid=os.getpid(),
                gpus=[gpu.uuid for gpu in self._gpus],
                batch_size=256,
                world_size=1,
                started_at_s=self._started_at_s,
                heartbeat_s=HEARTBEAT_S,
            )
        )
