"""One of every report of a node, a run and a service, as it travels: JSON, for whoever listens."""

from publishers.reports import (
    Command,
    GpuDescription,
    GpuEnergy,
    GridSignal,
    LimitChange,
    NodeStatus,
    PartEntry,
    PartProfile,
    ProfileEntry,
    ProfileReport,
    RunEnergy,
    RunPlan,
    SignalValue,
)
from publishers.wire import Message

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
            b'{"time_s":1700000000.0,"energy_j":1234.5,"power_w":250.25,"power_limit_w":275.0,"carbon_g":0.125,"'
            b'cost":-0.5,"currency":"EUR","carbon_intensity_g_per_kwh":412.0,"utilization_ratio":0.97,"temperatu'
            b're_c":61.0,"job":"resnet50"}'
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
        RunPlan(
            run="r1",
            node="node-1",
            beat=7,
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
            b'{"run":"r1","node":"node-1","beat":7,"time_s":1700000000.0,"heartbeat_s":5.0,"reason":"slowdown_s'
            b'ignal","detail":"225 W","gpu_model":"NVIDIA A40","max_power_limit_w":300.0,"power_limit_w":225.0,"'
            b'is_steady":true,"signal":"200 g/kWh"}'
        ),
    ),
    (
        PartProfile(
            run="r1",
            state="following",
            reason="slowdown_signal",
            detail="225 W",
            gpu_model="NVIDIA A40",
            n_gpus=4,
            n_ranks=4,
            points=[PartEntry(power_limit_w=225.0, power_w=880.5, iterations_per_s=4.25, active_s=30.0)],
            batch_size=256,
        ),
        (
            b'{"run":"r1","state":"following","reason":"slowdown_signal","detail":"225 W","gpu_model":"NVIDIA A4'
            b'0","n_gpus":4,"n_ranks":4,"points":[{"power_limit_w":225.0,"power_w":880.5,"iterations_per_s":4.25'
            b',"active_s":30.0}],"batch_size":256}'
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
            saved_ratio=0.15,
            slowdown_ratio=1.025,
            final=True,
        ),
        (
            b'{"run":"r1","state":"finished","gpu_model":"NVIDIA A40","n_gpus":1,"iterations":5000,"epochs":2,"d'
            b'uration_s":1000.5,"energy_j":250000.0,"batch_size":256,"reached":false,"carbon_g":28.5,"cost":0.01'
            b'25,"currency":"EUR","baseline_energy_j":300000.0,"baseline_carbon_g":33.5,"baseline_duration_s":97'
            b'5.0,"saved_ratio":0.15,"slowdown_ratio":1.025,"final":true}'
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
]
