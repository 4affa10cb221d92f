# The problems of a task: training, probe and benchmarks, disjoint.


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
