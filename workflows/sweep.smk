# A sweep (experiments/sweep/) is one Optuna study. A job is a slot, one trial of the study; the study itself, and the
# runs of the trials, lie beside the declared outputs and stay. The rules import Optuna in their jobs only.


# A job that is killed finds its own trial again.
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
        together("slots", resources.training)
    threads: of_job(lambda config: config.threads)
    resources:
        **machine(resources.training),
    params:
        identity=sweep_identity,
        call=python("bapo", "sweep", "--settings", SETTINGS.as_json(), needed=resources.training),
    message:
        "Sweep {wildcards.sweep}: slot {wildcards.slot}"
    shell:
        "{params.call} {wildcards.sweep:q} --slot {wildcards.slot:q} 2>&1 | tee -i {log:q}"


rule sweep_trials:
    input:
        sweep_slots,
    output:
        SWEEPS / "{sweep}" / "trials.json",
    log:
        LOGS / "sweeps" / "{sweep}" / "trials.log",
    params:
        identity=sweep_identity,
        call=python("bapo", "sweep", "--settings", SETTINGS.as_json()),
    message:
        "Trials of sweep {wildcards.sweep}"
    shell:
        "{params.call} {wildcards.sweep:q} 2>&1 | tee -i {log:q}"
