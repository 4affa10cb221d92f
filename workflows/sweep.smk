# Sweeps (experiments/sweep/): one Optuna study each. A job is a slot, one trial of the study; the study itself, and the
# runs of the trials, lie beside the declared outputs and stay. The rules import Optuna in their jobs only.


include: "sweep_common.smk"


# A job that is killed finds its own trial again. Fewer retries than the sweep's own would stop at the first kill.
rule sweep_slot:
    input:
        sweep_start,
        sweep_runs,
    output:
        SWEEPS / "{sweep}" / "slots" / "{slot}" / "trial.json",
    log:
        LOGS / "sweeps" / "{sweep}" / "{slot}.log",
    wildcard_constraints:
        slot=r"\d+",
    retries: 1
    group:
        together("slots", sweep_resource(gpus))
    threads: sweep_resource(threads_of)
    resources:
        mem_mb=sweep_resource(memory),
        runtime=sweep_resource(minutes),
        gpu=sweep_resource(gpus),
        nodes=one_machine(sweep_resource(gpus)),
    params:
        identity=sweep_identity,
        call=python("bapo", "sweep", "slot", "--settings", SETTINGS.as_json()),
    message:
        "Sweep {wildcards.sweep}: slot {wildcards.slot}"
    shell:
        "{params.call} {wildcards.sweep} --slot {wildcards.slot} 2>&1 | tee -i {log}"


rule sweep_trials:
    input:
        sweep_slots,
    output:
        SWEEPS / "{sweep}" / "trials.json",
    log:
        LOGS / "sweeps" / "{sweep}" / "trials.log",
    params:
        identity=sweep_identity,
        call=python("bapo", "sweep", "collect", "--settings", SETTINGS.as_json()),
    message:
        "Trials of sweep {wildcards.sweep}"
    shell:
        "{params.call} {wildcards.sweep} 2>&1 | tee -i {log}"


rule robustness:
    input:
        sweep_runs,
        trials=SWEEPS / "{sweep}" / "trials.json",
    output:
        multiext(str(SWEEPS / "{sweep}" / "robustness"), ".csv", ".pdf", ".png"),
        md=report(SWEEPS / "{sweep}" / "robustness.md", caption="report/robustness.rst", category="Sweeps"),
        svg=report(SWEEPS / "{sweep}" / "robustness.svg", caption="report/robustness.rst", category="Sweeps"),
    log:
        LOGS / "analysis" / "robustness_{sweep}.log",
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis", "robustness"),
        out=lambda wildcards, output: Path(output.md).parent,
    message:
        "Robustness: {wildcards.sweep}"
    shell:
        "{params.call} --trials {input.trials} --out {params.out} 2>&1 | tee -i {log}"


# `sweep_frequency_countdown` and the like: one sweep.
for sweep_name in SWEEPS_HERE:

    rule:
        name:
            f"sweep_{sweep_name}"
        input:
            SWEEPS / sweep_name / "robustness.md",
        localrule: True


rule sweep:
    input:
        [SWEEPS / name / "robustness.md" for name in SWEEPS_HERE],
    localrule: True
