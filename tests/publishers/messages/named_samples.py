"""Reports that say who and when, and their bytes: the second half of the format of the bus."""

from publishers.messages.codec import Message
from publishers.messages.reports import (
    BatchSizeBelief,
    Command,
    GpuEnergy,
    GridSignal,
    JobPosterior,
    JobTrial,
    LimitChange,
    NodeProfile,
    NodeStatus,
    Notice,
    Order,
    OrderResult,
    ProfileEntry,
    ProfileReport,
    RunEnergy,
    RunPlan,
    RunSchedule,
    ScheduleEntry,
)

NAMED: list[tuple[Message, bytes]] = [
    (
        NodeStatus(
            state="online", version="0.1.0", time_s=1.7e9, node="node-a", boot_id="b0", host="node-a.example.org"
        ),
        (
            b'{"state":"online","version":"0.1.0","time_s":1700000000.0,"node":"node-a","boot_id":"b0","host":"nod'
            b'e-a.example.org"}'
        ),
    ),
    (
        GpuEnergy(
            time_s=1.7e9, node="node-a", gpu_uuid="GPU-3f2a", gpu_index=0, energy_j=1234.5, power_w=249.87, job="bert"
        ),
        (
            b'{"time_s":1700000000.0,"node":"node-a","gpu_uuid":"GPU-3f2a","gpu_index":0,"energy_j":1234.5,"power_'
            b'w":249.87,"job":"bert"}'
        ),
    ),
    (
        LimitChange(
            time_s=1.7e9, node="node-a", gpu_uuid="GPU-3f2a", gpu_index=0, reason="run_finished", detail="restored"
        ),
        (
            b'{"time_s":1700000000.0,"node":"node-a","gpu_uuid":"GPU-3f2a","gpu_index":0,"reason":"run_finished","'
            b'detail":"restored"}'
        ),
    ),
    (
        LimitChange(time_s=1.7e9, reason="slowdown_signal", detail="200 W", power_limit_w=200.0, speed_ratio=0.9734),
        (
            b'{"time_s":1700000000.0,"reason":"slowdown_signal","detail":"200 W","power_limit_w":200.0,"speed_rati'
            b'o":0.9734}'
        ),
    ),
    (
        ProfileReport(
            time_s=1.7e9,
            user="ada@example.org",
            job="bert",
            run="r1",
            state="planned",
            gpu_model="NVIDIA A40",
            n_gpus=1,
            points=[ProfileEntry(power_limit_w=200.0, power_w=198.25, iterations_per_s=1.23457, n=40)],
        ),
        (
            b'{"time_s":1700000000.0,"user":"ada@example.org","job":"bert","run":"r1","state":"planned","gpu_model'
            b'":"NVIDIA A40","n_gpus":1,"points":[{"power_limit_w":200.0,"power_w":198.25,"iterations_per_s":1.234'
            b'57,"n":40}]}'
        ),
    ),
    (
        RunSchedule(
            time_s=1.7e9,
            user="ada@example.org",
            job="bert",
            run="r1",
            objective="slowdown",
            entries=[
                ScheduleEntry(
                    starts_s=1.7e9,
                    power_limit_w=200.0,
                    power_w=198.25,
                    speed_ratio=0.9345,
                    second_power_limit_w=205.0,
                    second_ratio=0.25,
                ),
                ScheduleEntry(
                    starts_s=1.7e9 + 3600, power_limit_w=200.0, power_w=40.0, speed_ratio=0.0, paused_ratio=1.0
                ),
            ],
            until_s=1.7e9 + 86_400,
            max_slowdown_ratio=1.03,
            expected_end_s=1.7e9 + 90_000,
            expected_slowdown_ratio=1.0298,
            expected_slowdown_ci90_ratio=0.0012,
            goal_by="ada",
            goal_why="it is hot",
            goal_until_s=1.70005e9,
            expected_saved_ratio=0.1523,
            expected_saved_ci90_ratio=0.0052,
            expected_saved_energy_ratio=0.1427,
            expected_saved_energy_ci90_ratio=0.0021,
        ),
        (
            b'{"time_s":1700000000.0,"user":"ada@example.org","job":"bert","run":"r1","objective":"slowdown","entr'
            b'ies":[{"starts_s":1700000000.0,"power_limit_w":200.0,"power_w":198.25,"speed_ratio":0.9345,"second_p'
            b'ower_limit_w":205.0,"second_ratio":0.25},{"starts_s":1700003600.0,"power_limit_w":200.0,"power_w":40'
            b'.0,"speed_ratio":0.0,"paused_ratio":1.0}],"until_s":1700086400.0,"max_slowdown_ratio":1.03,"expected'
            b'_end_s":1700090000.0,"expected_slowdown_ratio":1.0298,"expected_slowdown_ci90_ratio":0.0012,'
            b'"goal_by":"ada","goal_why":"it is hot","goal_until_s":1700050000.0,"expected_saved'
            b'_ratio":0.1523,"expected_saved_ci90_ratio":0.0052,"expected_saved_energy_ratio":0.1427,"expected_saved_e'
            b'nergy_ci90_ratio":0.0021}'
        ),
    ),
    (
        JobPosterior(
            time_s=1.7e9,
            user="ada@example.org",
            job="bert",
            policy="gridchase",
            eta=0.5,
            default_batch_size=1024,
            next_batch_size=128,
            next_reason="best_so_far",
            next_detail="the best so far",
            best_batch_size=128,
            n_observations=2,
            beliefs=[
                BatchSizeBelief(
                    batch_size=128, n_runs=1, n_reached=1, epochs=19.0, cost_ratio=1.0, cost_lower_ratio=0.97
                ),
                BatchSizeBelief(batch_size=4096, cannot_run=True),
            ],
            trials=[
                JobTrial(
                    run="r1",
                    batch_size=128,
                    state="reached",
                    reason="default_first",
                    requested_at_s=1.7e9,
                    epochs=19,
                    cost_ratio=0.98,
                )
            ],
        ),
        (
            b'{"time_s":1700000000.0,"user":"ada@example.org","job":"bert","policy":"gridchase","eta":0.5,"default'
            b'_batch_size":1024,"next_batch_size":128,"next_reason":"best_so_far","next_detail":"the best so far",'
            b'"best_batch_size":128,"n_observations":2,"beliefs":[{"batch_size":128,"n_runs":1,"n_reached":1,"epoc'
            b'hs":19.0,"cost_ratio":1.0,"cost_lower_ratio":0.97},{"batch_size":4096,"cannot_run":true}],"trials":['
            b'{"run":"r1","batch_size":128,"state":"reached","reason":"default_first","requested_at_s":1700000000.'
            b'0,"epochs":19,"cost_ratio":0.98}]}'
        ),
    ),
    (
        RunPlan(
            user="ada@example.org",
            job="bert",
            run="r1",
            node="node-a",
            seq=7,
            time_s=1.7e9,
            heartbeat_s=5.0,
            reason="slowdown_static",
            detail="the best static limit",
            gpu_model="NVIDIA A40",
            max_power_limit_w=300.0,
            power_limit_w=213.456789,
        ),
        (
            b'{"user":"ada@example.org","job":"bert","run":"r1","node":"node-a","seq":7,"time_s":1700000000.0,"hea'
            b'rtbeat_s":5.0,"reason":"slowdown_static","detail":"the best static limit","gpu_model":"NVIDIA A40","'
            b'max_power_limit_w":300.0,"power_limit_w":213.456789}'
        ),
    ),
    (
        NodeProfile(
            time_s=1.7e9,
            user="ada@example.org",
            job="bert",
            run="r1",
            node="node-b",
            state="following",
            reason="slowdown_static",
            detail="plan of node-a",
            gpu_model="NVIDIA A40",
            n_gpus=1,
            n_ranks=1,
            points=[],
        ),
        (
            b'{"time_s":1700000000.0,"user":"ada@example.org","job":"bert","run":"r1","node":"node-b","state":"fol'
            b'lowing","reason":"slowdown_static","detail":"plan of node-a","gpu_model":"NVIDIA A40","n_gpus":1,"n_'
            b'ranks":1,"points":[]}'
        ),
    ),
    (
        RunEnergy(
            time_s=1.7e9,
            user="ada@example.org",
            job="bert",
            run="r1",
            node="node-b",
            state="running",
            gpu_model="NVIDIA A40",
            n_gpus=1,
            iterations=10,
            epochs=1,
            duration_s=20.125,
            energy_j=5000.1,
        ),
        (
            b'{"time_s":1700000000.0,"user":"ada@example.org","job":"bert","run":"r1","node":"node-b","state":"run'
            b'ning","gpu_model":"NVIDIA A40","n_gpus":1,"iterations":10,"epochs":1,"duration_s":20.125,"energy_j":'
            b"5000.1}"
        ),
    ),
    (
        GridSignal(
            time_s=1.7e9,
            source="entsoe",
            zone="DE",
            kind="price",
            unit="EUR/kWh",
            issued_at_s=1.7e9,
            state="fresh",
            age_s=0.0,
            value=0.0912345,
            values=[],
        ),
        (
            b'{"time_s":1700000000.0,"source":"entsoe","zone":"DE","kind":"price","unit":"EUR/kWh","issued_at_s":1'
            b'700000000.0,"state":"fresh","age_s":0.0,"value":0.0912345,"values":[]}'
        ),
    ),
    (
        Command(time_s=1.7e9, user="ada@example.org", job="bert", run="r1", command="stop", reason="it costs too much"),
        (
            b'{"time_s":1700000000.0,"user":"ada@example.org","job":"bert","run":"r1","command":"stop","reason":"i'
            b't costs too much"}'
        ),
    ),
    (
        Notice(
            user="ada@example.org",
            job="bert",
            run="r1",
            rank=0,
            node="node-a",
            boot_id="b0",
            time_s=1.7e9,
            code="gpu_unknown",
            detail="there is no GPU 7 on this node",
        ),
        (
            b'{"user":"ada@example.org","job":"bert","run":"r1","rank":0,"node":"node-a","boot_id":"b0","time_s":1'
            b'700000000.0,"code":"gpu_unknown","detail":"there is no GPU 7 on this node"}'
        ),
    ),
    (
        Notice(
            user="ada",
            job="bert",
            run="w1",
            rank=1,
            node="node-a",
            boot_id="b0",
            time_s=1.7e9,
            code="joined",
            detail="this process is rank 1 of run w0",
            joined="w0",
        ),
        (
            b'{"user":"ada","job":"bert","run":"w1","rank":1,"node":"node-'
            b'a","boot_id":"b0","time_s":1700000000.0,"code":"joined","det'
            b'ail":"this process is rank 1 of run w0","joined":"w0"}'
        ),
    ),
    (
        RunEnergy(
            run="w0",
            state="finished",
            gpu_model="A40",
            n_gpus=1,
            iterations=40,
            epochs=1,
            duration_s=20.0,
            energy_j=6000.0,
            last_rank=1,
            final=True,
        ),
        (
            b'{"run":"w0","state":"finished","gpu_model":"A40","n_gpus":1,'
            b'"iterations":40,"epochs":1,"duration_s":20.0,"energy_j":6000'
            b'.0,"last_rank":1,"final":true}'
        ),
    ),
    (
        RunEnergy(
            run="w0",
            state="running",
            gpu_model="A40",
            n_gpus=1,
            iterations=40,
            epochs=1,
            duration_s=20.0,
            energy_j=6000.0,
            signal_kind="marginal",
            signal_source="WattTime",
            signal_zone="CAISO_NORTH",
            host_power_w=300.0,
            pue=1.4,
        ),
        (
            b'{"run":"w0","state":"running","gpu_model":"A40","n_gpus":1,"iterations":40,"epochs":1,"duration_s":20.0,'
            b'"energy_j":6000.0,"signal_kind":"marginal","signal_source":"WattTime","signal_zone":"CAISO_NORTH",'
            b'"host_power_w":300.0,"pue":1.4}'
        ),
    ),
    (
        Order(
            time_s=1.7e9,
            action="pin",
            correlation="o-1",
            by="ada",
            why="the room is hot",
            power_limit_w=205.0,
            until_s=1.7e9 + 7_200,
        ),
        (
            b'{"time_s":1700000000.0,"action":"pin","correlation":"o-1","by":"ada",'
            b'"why":"the room is hot","power_limit_w":205.0,"until_s":1700007200.0}'
        ),
    ),
    (
        OrderResult(
            time_s=1.7e9,
            user="ada",
            job="bert",
            run="r1",
            node="node-a",
            action="pin",
            correlation="o-1",
            state="done",
            reason="pinned",
            detail="205 W read back from 2 GPUs",
            power_limit_w=205.0,
            enforced_power_limit_w=205.0,
            until_s=1.7e9 + 7_200,
        ),
        (
            b'{"time_s":1700000000.0,"user":"ada","job":"bert","run":"r1","node":"node-a","action":"pin",'
            b'"correlation":"o-1","state":"done","reason":"pinned","detail":"205 W read back from 2 GPUs",'
            b'"power_limit_w":205.0,"enforced_power_limit_w":205.0,"until_s":1700007200.0}'
        ),
    ),
    (
        Order(time_s=1.7e9, action="pause", correlation="o-2", by="ada", why="the grid is short of power", for_s=120.0),
        (
            b'{"time_s":1700000000.0,"action":"pause","correlation":"o-2","by":"ada",'
            b'"why":"the grid is short of power","for_s":120.0}'
        ),
    ),
    (
        OrderResult(
            time_s=1.7e9,
            user="ada",
            job="bert",
            run="r1",
            node="node-a",
            action="pause",
            correlation="o-2",
            state="done",
            reason="paused",
            detail="paused for 119 s more at most",
            for_s=120.0,
        ),
        (
            b'{"time_s":1700000000.0,"user":"ada","job":"bert","run":"r1","node":"node-a","action":"pause",'
            b'"correlation":"o-2","state":"done","reason":"paused","detail":"paused for 119 s more at most",'
            b'"for_s":120.0}'
        ),
    ),
    (
        Order(
            time_s=1.7e9,
            action="budget",
            correlation="o-3",
            by="ada",
            why="it is hot",
            until_s=1.7e9 + 7_200,
            max_slowdown_ratio=1.08,
        ),
        (
            b'{"time_s":1700000000.0,"action":"budget","correlation":"o-3","by":"ada","why":"it is hot",'
            b'"until_s":1700007200.0,"max_slowdown_ratio":1.08}'
        ),
    ),
    (
        OrderResult(
            time_s=1.7e9,
            user="ada",
            job="bert",
            run="r1",
            node="node-a",
            action="deadline",
            correlation="o-4",
            state="done",
            reason="planned",
            detail="205 W by its plan, read back",
            enforced_power_limit_w=205.0,
            deadline_s=1.7e9 + 7_200,
        ),
        (
            b'{"time_s":1700000000.0,"user":"ada","job":"bert","run":"r1","node":"node-a","action":"deadline",'
            b'"correlation":"o-4","state":"done","reason":"planned","detail":"205 W by its plan, read back",'
            b'"enforced_power_limit_w":205.0,"deadline_s":1700007200.0}'
        ),
    ),
]
