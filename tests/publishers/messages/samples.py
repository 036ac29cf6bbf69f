"""One of every message, as it travels: what a golden test compares, and what fuzzing begins with.

One of every report of a node, a run and a service, as it travels: JSON, for whoever listens.

One of every message, as it travels: what a golden test compares, and what fuzzing begins with.
"""

import math
from array import array

from publishers.messages.codec import Message
from publishers.messages.reports import (
    Command,
    GpuDescription,
    GpuEnergy,
    GridSignal,
    LimitChange,
    NodeProfile,
    NodeProfileEntry,
    NodeStatus,
    ProfileEntry,
    ProfileReport,
    RunEnergy,
    RunPlan,
    SignalValue,
)
from publishers.messages.training import (
    Iterations,
    Metric,
    RankStatus,
    TrialAnswer,
    TrialFailure,
    TrialRequest,
    TrialTimes,
    pack_ends,
    pack_work,
)

REPORTS: list[tuple[Message, bytes]] = [
    (
        NodeStatus(
            state="online",
            version="0.1.0",
            gpus=[
                GpuDescription(
                    uuid="GPU-3f2a",
                    index=0,
                    model="NVIDIA A40",
                    min_power_limit_w=100.0,
                    max_power_limit_w=300.0,
                    default_power_limit_w=300.0,
                    prior_power_limit_w=250.0,
                )
            ],
        ),
        (
            b'{"state":"online","version":"0.1.0","gpus":[{"uuid":"GPU-3f2a","index":0,"model":"NVIDIA A40","min'
            b'_power_limit_w":100.0,"max_power_limit_w":300.0,"default_power_limit_w":300.0,"prior_power_limit_w'
            b'":250.0}]}'
        ),
    ),
    (
        GpuEnergy(
            time_s=1.7e9,
            energy_j=1234.5,
            started_at_s=1.69e9,
            power_w=250.25,
            power_limit_w=275.0,
            carbon_g=0.125,
            cost=-0.5,
            currency="EUR",
            carbon_intensity_g_per_kwh=412.0,
            utilization_ratio=0.97,
            temperature_c=61.0,
            job="resnet50",
        ),
        (
            b'{"time_s":1700000000.0,"energy_j":1234.5,"started_at_s":1690000000.0,"power_w":250.25,"power_limit'
            b'_w":275.0,"carbon_g":0.125,"cost":-0.5,"currency":"EUR","carbon_intensity_g_per_kwh":412.0,"utiliz'
            b'ation_ratio":0.97,"temperature_c":61.0,"job":"resnet50"}'
        ),
    ),
    (
        LimitChange(
            time_s=1.7e9,
            reason="planned",
            detail="275 W of 300 W",
            power_limit_w=275.0,
            requested_power_limit_w=275.0,
            enforced_power_limit_w=270.0,
            previous_power_limit_w=300.0,
            job="resnet50",
            signal="carbon",
        ),
        (
            b'{"time_s":1700000000.0,"reason":"planned","detail":"275 W of 300 W","power_limit_w":275.0,"request'
            b'ed_power_limit_w":275.0,"enforced_power_limit_w":270.0,"previous_power_limit_w":300.0,"job":"resne'
            b't50","signal":"carbon"}'
        ),
    ),
    (
        ProfileReport(
            state="profiling",
            gpu_model="NVIDIA A40",
            n_gpus=2,
            batch_size=256,
            points=[
                ProfileEntry(
                    power_limit_w=300.0,
                    power_w=290.5,
                    iterations_per_s=4.25,
                    power_ci_w=0.5,
                    iterations_per_s_ci=0.0625,
                    n=40,
                )
            ],
        ),
        (
            b'{"state":"profiling","gpu_model":"NVIDIA A40","n_gpus":2,"points":[{"power_limit_w":300.0,"power_w'
            b'":290.5,"iterations_per_s":4.25,"power_ci_w":0.5,"iterations_per_s_ci":0.0625,"n":40}],"batch_size'
            b'":256}'
        ),
    ),
    (
        ProfileReport(
            state="waiting",
            gpu_model="NVIDIA A40",
            n_gpus=1,
            points=[],
            work_per_iteration=8192.0,
            work_unit="tokens",
        ),
        (
            b'{"state":"waiting","gpu_model":"NVIDIA A40","n_gpus":1,"points":[],"work_per_iteration":8192.0,"wor'
            b'k_unit":"tokens"}'
        ),
    ),
    (
        RunPlan(
            run="r1",
            node="node-1",
            seq=7,
            time_s=1.7e9,
            heartbeat_s=5.0,
            reason="slowdown_signal",
            detail="225 W",
            gpu_model="NVIDIA A40",
            max_power_limit_w=300.0,
            power_limit_w=225.0,
            is_steady=True,
            signal="200 g/kWh",
        ),
        (
            b'{"run":"r1","node":"node-1","seq":7,"time_s":1700000000.0,"heartbeat_s":5.0,"reason":"slowdown_s'
            b'ignal","detail":"225 W","gpu_model":"NVIDIA A40","max_power_limit_w":300.0,"power_limit_w":225.0,"'
            b'is_steady":true,"signal":"200 g/kWh"}'
        ),
    ),
    (
        NodeProfile(
            run="r1",
            state="following",
            reason="slowdown_signal",
            detail="225 W",
            gpu_model="NVIDIA A40",
            n_gpus=4,
            n_ranks=4,
            points=[
                NodeProfileEntry(
                    power_limit_w=225.0,
                    power_w=880.5,
                    iterations_per_s=4.25,
                    active_s=30.0,
                    energy_ratio=1.125,
                    energy_ci90_ratio=0.004,
                )
            ],
            batch_size=256,
        ),
        (
            b'{"run":"r1","state":"following","reason":"slowdown_signal","detail":"225 W","gpu_model":"NVIDIA A4'
            b'0","n_gpus":4,"n_ranks":4,"points":[{"power_limit_w":225.0,"power_w":880.5,"iterations_per_s":4.25'
            b',"active_s":30.0,"energy_ratio":1.125,"energy_ci90_ratio":0.004}],"batch_size":256}'
        ),
    ),
    (
        RunEnergy(
            run="r1",
            state="finished",
            gpu_model="NVIDIA A40",
            n_gpus=1,
            iterations=5000,
            epochs=2,
            duration_s=1000.5,
            energy_j=250000.0,
            batch_size=256,
            reached=False,
            carbon_g=28.5,
            cost=0.0125,
            currency="EUR",
            baseline_energy_j=300000.0,
            baseline_carbon_g=33.5,
            baseline_duration_s=975.0,
            evidence="measured",
            saved_ratio=0.15,
            saved_ci90_ratio=0.0042,
            saved_energy_ratio=0.1667,
            saved_energy_ci90_ratio=0.0031,
            slowdown_ratio=1.0262,
            slowdown_ci90_ratio=0.0008,
            final=True,
        ),
        (
            b'{"run":"r1","state":"finished","gpu_model":"NVIDIA A40","n_gpus":1,"iterations":5000,"epochs":2,"d'
            b'uration_s":1000.5,"energy_j":250000.0,"batch_size":256,"reached":false,"carbon_g":28.5,"cost":0.01'
            b'25,"currency":"EUR","baseline_energy_j":300000.0,"baseline_carbon_g":33.5,"baseline_duration_s":97'
            b'5.0,"evidence":"measured","saved_ratio":0.15,"saved_ci90_ratio":0.0042,"saved_energy_ratio":0.1667'
            b',"saved_energy_ci90_ratio":0.0031,"slowdown_ratio":1.0262,"slowdown_ci90_ratio":0.0008,"final":tru'
            b"e}"
        ),
    ),
    (
        RunEnergy(
            run="r1",
            state="finished",
            gpu_model="NVIDIA A40",
            n_gpus=1,
            iterations=5000,
            epochs=2,
            duration_s=1000.5,
            energy_j=250000.0,
            reason="held_out",
            ab_runs=40,
            ab_held_out_runs=5,
            ab_more_runs=12,
            ab_saved_energy_ratio=0.112,
            ab_saved_energy_lower_ratio=0.104,
            ab_saved_energy_upper_ratio=0.12,
            ab_slowdown_ratio=1.029,
            ab_slowdown_lower_ratio=1.024,
            ab_slowdown_upper_ratio=1.034,
            final=True,
        ),
        (
            b'{"run":"r1","state":"finished","gpu_model":"NVIDIA A40","n_gpus":1,"iterations":5000,"epochs":2,"du'
            b'ration_s":1000.5,"energy_j":250000.0,"reason":"held_out","ab_runs":40,"ab_held_out_runs":5,"ab_more'
            b'_runs":12,"ab_saved_energy_ratio":0.112,"ab_saved_energy_lower_ratio":0.104,"ab_saved_energy_upper_'
            b'ratio":0.12,"ab_slowdown_ratio":1.029,"ab_slowdown_lower_ratio":1.024,"ab_slowdown_upper_ratio":1.0'
            b'34,"final":true}'
        ),
    ),
    (
        GridSignal(
            time_s=1.7e9,
            source="neso GB",
            zone="GB",
            kind="average",
            unit="g/kWh",
            issued_at_s=1.7e9,
            state="held",
            age_s=1800.0,
            values=[
                SignalValue(starts_s=1.7e9, value=412.0),
                SignalValue(starts_s=1700003600.0, value=400.5, estimated=True, lower=350.0, upper=450.0),
            ],
            detail="neso GB has nothing new",
            forecast_from_s=1700003600.0,
            known_until_s=1700001800.0,
        ),
        (
            b'{"time_s":1700000000.0,"source":"neso GB","zone":"GB","kind":"average","unit":"g/kWh","issued_at_s'
            b'":1700000000.0,"state":"held","age_s":1800.0,"values":[{"starts_s":1700000000.0,"value":412.0},{"s'
            b'tarts_s":1700003600.0,"value":400.5,"estimated":true,"lower":350.0,"upper":450.0}],"detail":"neso '
            b'GB has nothing new","forecast_from_s":1700003600.0,"known_until_s":1700001800.0}'
        ),
    ),
    (
        Command(command="stop", reason="the trial costs more than the best one"),
        b'{"command":"stop","reason":"the trial costs more than the best one"}',
    ),
    (
        Command(
            command="pause",
            reason="the grid is short of power",
            boot_id="b0",
            node="node-1",
            pause_id="9f3c",
            until_ns=123_456_789_000,
            for_s=10.0,
        ),
        (
            b'{"command":"pause","reason":"the grid is short of power","boot_id":"b0","node":"node-1","pause_id":"9f3c'
            b'","until_ns":123456789000,"for_s":10.0}'
        ),
    ),
]


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
            pausable=True,
            max_pause_s=300.0,
            paused_since_ns=123_456_789_000,
            paused_s=12.5,
        ),
        (
            b"\x8d\xa3run\xa2r1\xa5state\xa7running\xa4host\xa6node-1\xa7boot_id\xa2b0\xa3pid*\xa4gpus\x90\xaaworl"
            b"d_size\x01\xacstarted_at_s\xcbA\xd9T\xfc@\x00\x00\x00\xabheartbeat_s\xcb@$\x00\x00\x00\x00\x00\x00"
            b"\xa8pausable\xc3\xabmax_pause_s\xcb@r\xc0\x00\x00\x00\x00\x00\xafpaused_since_ns\xcf\x00\x00\x00"
            b"\x1c\xbe\x99\x1a\x08\xa8paused_s\xcb@)\x00\x00\x00\x00\x00\x00"
        ),
    ),
    (
        RankStatus(
            run="w1",
            state="running",
            host="node-1",
            boot_id="b0",
            pid=43,
            gpus=[],
            world_size=1,
            started_at_s=1.7e9,
            heartbeat_s=10.0,
            launch="5f0c1a2b3c4d",
        ),
        (
            b"\x8a\xa3run\xa2w1\xa5state\xa7running\xa4host\xa6node-1\xa7boot_id\xa2b0\xa3pid+\xa4gpus\x90\xaawor"
            b"ld_size\x01\xacstarted_at_s\xcbA\xd9T\xfc@\x00\x00\x00\xabheartbeat_s\xcb@$\x00\x00\x00\x00\x00\x00\xa6launch\xac5"
            b"f0c1a2b3c4d"
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
        Iterations(
            run="r1",
            seq=8,
            first=1002,
            begin_ns=5_000_000_000,
            end_ns=pack_ends(array("q", [5_100_000_000, 5_200_000_001])),
            epoch=3,
            dropped=2,
            counted_by="optimizer",
            request_ns=pack_ends(array("q", [5_000_000_000, 5_100_000_003])),
            received_ns=pack_ends(array("q", [5_000_000_000, 5_100_000_004])),
        ),
        (
            b"\x8a\xa3run\xa2r1\xa3seq\x08\xa5first\xcd\x03\xea\xa8begin_ns\xcf\x00\x00\x00\x01*\x05\xf2\x00\xa6en"
            b"d_ns\xc4\x10\x00\xd3\xfb/\x01\x00\x00\x00\x01\xb4\xf15\x01\x00\x00\x00\xa5epoch\x03\xa7dropped\x02"
            b"\xaacounted_by\xa9optimizer\xaarequest_ns\xc4\x10\x00\xf2\x05*\x01\x00\x00\x00\x03\xd3\xfb/\x01\x00"
            b"\x00\x00\xabreceived_ns\xc4\x10\x00\xf2\x05*\x01\x00\x00\x00\x04\xd3\xfb/\x01\x00\x00\x00"
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
            work_unit="tokens",
            total_work=2.5e9,
        ),
        (
            b"\x8b\xa3run\xa2r1\xa5state\xa7running\xa4host\xa6node-1\xa7boot_id\xa2b0\xa3pid*\xa4gpus\x90\xaawor"
            b"ld_size\x01\xacstarted_at_s\xcbA\xd9T\xfc@\x00\x00\x00\xabheartbeat_s\xcb@$\x00\x00\x00\x00\x00\x00\xa9work_uni"
            b"t\xa6tokens\xaatotal_work\xcbA\xe2\xa0_ \x00\x00\x00"
        ),
    ),
    (
        Iterations(
            run="r1",
            seq=7,
            first=100,
            begin_ns=5_000_000_000,
            end_ns=pack_ends(array("q", [5_100_000_000, 5_200_000_000])),
            epoch=2,
            dropped=0,
            counted_by="callback",
            work=pack_work(array("d", [4096.0, math.nan])),
        ),
        (
            b"\x89\xa3run\xa2r1\xa3seq\x07\xa5firstd\xa8begin_ns\xcf\x00\x00\x00\x01*\x05\xf2\x00\xa6end_ns\xc4\x10\x00\xd3\xfb/\x01\x00\x00\x00\x00\xb4\xf15\x01"
            b"\x00\x00\x00\xa5epoch\x02\xa7dropped\x00\xaacounted_by\xa8callback\xa4work\xc4\x10\x00\x00\x00\x00\x00\x00\xb0@\x00\x00\x00\x00\x00\x00"
            b"\xf8\x7f"
        ),
    ),
]
