# The jobs of a run, in their order: problems, base model, training, evaluation. Trials of sweeps are at the end.


# The problems of a task: for training, the probe and the benchmarks, which have none in common.
rule data:
    output:
        DATA / "summary.json",
    log:
        LOGS / "data" / "{task}.log",
    priority: lambda wildcards: priorities().of_start(wildcards.task)
    group:
        together("start")
    resources:
        **machine(resources.problems),
    params:
        identity=of_job(identity.data_identity),
        call=bapo("data"),
    message:
        "Problems: {wildcards.task}"
    shell:
        "{params.call} 2>&1 | tee -i {log:q}"


# A variant of the model may change the problems.
use rule data as data_of_model with:
    output:
        DATA_OF_MODEL / "summary.json",
    log:
        LOGS / "data" / "{task}" / "{model}.log",
    priority: lambda wildcards: priorities().of_start(wildcards.task, wildcards.model)
    message:
        "Problems: {wildcards.model}, {wildcards.task}"


# The models that reinforcement learning starts from: they come with the suite, are trained from scratch, or are noted
# where they are pretrained.
rule base:
    output:
        BASE / "summary.json",
    log:
        LOGS / "base" / "{task}" / "{model}.log",
    priority: lambda wildcards: priorities().of_start(wildcards.task, wildcards.model)
    group:
        together("start", resources.base_model)
    threads: of_job(lambda config: config.base.threads)
    resources:
        **machine(resources.base_model),
    params:
        identity=of_job(identity.base_identity),
        call=bapo("base", needed=resources.base_model),
    message:
        "Base model: {wildcards.model}, {wildcards.task}"
    shell:
        "{params.call} 2>&1 | tee -i {log:q}"


# Checkpoints lie beside the declared output, which Snakemake deletes before a rerun: they stay, and an interrupted run
# goes on from the last one.
rule train:
    input:
        problems,
        BASE / "summary.json",
        run_that_sets_the_budget,
    output:
        RUN / "summary.json",
    log:
        LOGS / "train" / "{task}" / "{model}" / "{method}" / "seed{seed}.log",
    priority: run_priority
    group:
        together("runs", resources.training)
    threads: of_job(lambda config: config.threads)
    resources:
        **machine(resources.training),
    params:
        identity=run_identity,
        call=bapo("train", needed=resources.training),
    message:
        "Train: {wildcards.method}, seed {wildcards.seed}, {wildcards.model}, {wildcards.task}"
    shell:
        "{params.call} 2>&1 | tee -i {log:q}"


# Final checkpoints and base models answer each benchmark problem 32 times by default, kept checkpoints 8 times.
rule evaluate:
    input:
        problems,
        RUN / "summary.json",
    output:
        RUN / "eval" / "summary.json",
    log:
        LOGS / "evaluate" / "{task}" / "{model}" / "{method}" / "seed{seed}.log",
    priority: AT_ONCE
    group:
        together("runs", resources.evaluation)
    threads: of_job(lambda config: config.threads)
    resources:
        **machine(resources.evaluation),
    params:
        identity=of_job(identity.evaluation_identity),
        call=bapo("evaluate", needed=resources.evaluation),
    message:
        "Evaluate: {wildcards.method}, seed {wildcards.seed}, {wildcards.model}, {wildcards.task}"
    shell:
        "{params.call} 2>&1 | tee -i {log:q}"


use rule evaluate as evaluate_base with:
    input:
        problems,
        BASE / "summary.json",
    output:
        BASE / "eval" / "summary.json",
    log:
        LOGS / "evaluate" / "{task}" / "{model}" / "base.log",
    group:
        together("start", resources.evaluation)
    params:
        call=bapo("evaluate", "--base", needed=resources.evaluation),
    message:
        "Evaluate: {wildcards.model} before training, {wildcards.task}"


# This evaluates every kept checkpoint of a run. Tables beside the declared output stay: an interrupted curve goes on.
use rule evaluate as curve with:
    input:
        problems,
        BASE / "summary.json",
        RUN / "summary.json",
    output:
        RUN / "curve" / "summary.json",
    log:
        LOGS / "curve" / "{task}" / "{model}" / "{method}" / "seed{seed}.log",
    priority: 0
    params:
        identity=of_job(identity.curve_identity),
        call=bapo("evaluate", "--curve", needed=resources.evaluation),
    message:
        "Curve: {wildcards.method}, seed {wildcards.seed}, {wildcards.model}, {wildcards.task}"


# A sweep (experiments/sweep/) is one Optuna study. A job is a slot, one trial of the study; the study itself, and the
# runs of the trials, lie beside the declared outputs and stay. The rules import Optuna in their jobs only.
#
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
        identity=trials_identity,
        call=python("bapo", "sweep", "--settings", SETTINGS.as_json()),
    message:
        "Trials of sweep {wildcards.sweep}"
    shell:
        "{params.call} {wildcards.sweep:q} 2>&1 | tee -i {log:q}"
