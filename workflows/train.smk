# This is reinforcement learning. Checkpoints lie beside the declared output, which Snakemake deletes before a rerun:
# they stay, and an interrupted run goes on from the last one.


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
