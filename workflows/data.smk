# This makes the problems of a task: for training, the probe and the benchmarks, which have none in common.


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
