# The problems of a task: training, probe and benchmarks, disjoint.


rule data:
    output:
        DATA / "summary.json",
    log:
        LOGS / "data" / "{task}.log",
    priority: 40
    group:
        together("start")
    resources:
        mem_mb=little_memory,
        runtime=lambda wildcards, attempt: 240 * attempt,
    params:
        identity=data_identity,
        call=bapo("data"),
    message:
        "Problems: {wildcards.task}"
    shell:
        "{params.call} 2>&1 | tee -i {log}"
