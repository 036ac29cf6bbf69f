"""One of every message, as it travels: what a golden test compares, and what fuzzing begins with."""

from array import array

from publishers.wire import (
    Iterations,
    Message,
    Metric,
    RankStatus,
    TrialAnswer,
    TrialFailure,
    TrialRequest,
    TrialTimes,
    pack_ends,
)
from tests.publishers.report_samples import REPORTS

GOLDEN: list[tuple[Message, bytes]] = [
    (
        RankStatus(
            run="r1",
            state="running",
            host="node-1",
            boot_id="b0",
            pid=42,
            gpus=["GPU-3f2a", 1],
            world_size=2,
            started_at_s=1.7e9,
            heartbeat_s=10.0,
            batch_size=256,
        ),
        (
            b"\x8a\xa3run\xa2r1\xa5state\xa7running\xa4host\xa6node-1\xa7boot_id\xa2b0\xa3pid*\xa4gpus\x92\xa8GP"
            b"U-3f2a\x01\xaaworld_size\x02\xacstarted_at_s\xcbA\xd9T\xfc@\x00\x00\x00\xabheartbeat_s\xcb@$\x00\x00"
            b"\x00\x00\x00\x00\xaabatch_size\xcd\x01\x00"
        ),
    ),
    (
        RankStatus(
            run="r1",
            state="finished",
            host="node-1",
            boot_id="b0",
            pid=42,
            gpus=[],
            world_size=1,
            started_at_s=1.7e9,
            heartbeat_s=10.0,
            reached=True,
        ),
        (
            b"\x8a\xa3run\xa2r1\xa5state\xa8finished\xa4host\xa6node-1\xa7boot_id\xa2b0\xa3pid*\xa4gpus\x90\xaaw"
            b"orld_size\x01\xacstarted_at_s\xcbA\xd9T\xfc@\x00\x00\x00\xabheartbeat_s\xcb@$\x00\x00\x00\x00\x00\x00"
            b"\xa7reached\xc3"
        ),
    ),
    (
        RankStatus(
            run="r1",
            state="running",
            host="node-1",
            boot_id="b0",
            pid=42,
            gpus=[],
            world_size=1,
            started_at_s=1.7e9,
            heartbeat_s=10.0,
            total_iterations=450_450,
        ),
        (
            b"\x8a\xa3run\xa2r1\xa5state\xa7running\xa4host\xa6node-1\xa7boot_id\xa2b0\xa3pid*\xa4gpus\x90\xaawor"
            b"ld_size\x01\xacstarted_at_s\xcbA\xd9T\xfc@\x00\x00\x00\xabheartbeat_s\xcb@$\x00\x00\x00\x00\x00\x00\xb0total_it"
            b"erations\xce\x00\x06\xdf\x92"
        ),
    ),
    (
        Iterations(
            run="r1",
            seq=7,
            first=1000,
            begin_ns=5_000_000_000,
            end_ns=pack_ends(array("q", [5_100_000_000, 5_200_000_001])),
            epoch=3,
            dropped=2,
        ),
        (
            b"\x87\xa3run\xa2r1\xa3seq\x07\xa5first\xcd\x03\xe8\xa8begin_ns\xcf\x00\x00\x00\x01*\x05\xf2\x00\xa6"
            b"end_ns\xc4\x10\x00\xd3\xfb/\x01\x00\x00\x00\x01\xb4\xf15\x01\x00\x00\x00\xa5epoch\x03\xa7dropped\x02"
        ),
    ),
    (
        Metric(run="r1", epoch=3, value=0.765625, reached=True),
        b"\x84\xa3run\xa2r1\xa5epoch\x03\xa5value\xcb?\xe8\x80\x00\x00\x00\x00\x00\xa7reached\xc3",
    ),
    (
        TrialRequest(
            run="r1",
            reply_to="gridchase/v1/job/bert/run/r1/trial/answer",
            correlation="c-1",
            batch_sizes=[128, 256],
            default_batch_size=256,
        ),
        (
            b"\x85\xa3run\xa2r1\xa8reply_to\xd9)gridchase/v1/job/bert/run/r1/trial/answer\xabcorrelation\xa3c-1"
            b"\xabbatch_sizes\x92\xcc\x80\xcd\x01\x00\xb2default_batch_size\xcd\x01\x00"
        ),
    ),
    (
        TrialAnswer(
            run="r1",
            correlation="c-1",
            batch_size=128,
            reason="explored",
            detail="the least is known of 128",
            recurrence=7,
            cost_bound=1.5e6,
            lease_s=3600.0,
        ),
        (
            b"\x88\xa3run\xa2r1\xabcorrelation\xa3c-1\xaabatch_size\xcc\x80\xa6reason\xa8explored\xa6detail\xb9th"
            b"e least is known of 128\xaarecurrence\x07\xaacost_bound\xcbA6\xe3`\x00\x00\x00\x00\xa7lease_s\xcb@"
            b"\xac \x00\x00\x00\x00\x00"
        ),
    ),
    (
        TrialAnswer(run="r1", correlation="c-1", batch_size=128, reason="default_first", detail="", untimed=[128, 256]),
        (
            b"\x86\xa3run\xa2r1\xabcorrelation\xa3c-1\xaabatch_size\xcc\x80\xa6reason\xaddefault_first\xa6detail"
            b"\xa0\xa7untimed\x92\xcc\x80\xcd\x01\x00"
        ),
    ),
    (
        TrialTimes(
            run="r1", batch_sizes=[64, 128], iteration_times_s=[0.015625, 0.03125], too_large=256, batch_size=128
        ),
        (
            b"\x85\xa3run\xa2r1\xabbatch_sizes\x92@\xcc\x80\xb1iteration_times_s\x92\xcb?\x90\x00\x00\x00\x00\x00\x00\xcb?"
            b"\xa0\x00\x00\x00\x00\x00\x00\xa9too_large\xcd\x01\x00\xaabatch_size\xcc\x80"
        ),
    ),
    (
        TrialFailure(run="r1", batch_size=256, reason="out_of_memory", detail="CUDA out of memory"),
        (b"\x84\xa3run\xa2r1\xaabatch_size\xcd\x01\x00\xa6reason\xadout_of_memory\xa6detail\xb2CUDA out of memory"),
    ),
    *REPORTS,
]
