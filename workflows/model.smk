# The models that reinforcement learning starts from: trained from scratch, or noted where they are pretrained.


rule base:
    input:
        DATA / "summary.json",
    output:
        BASE / "summary.json",
    log:
        LOGS / "base" / "{task}" / "{model}.log",
    priority: 30
    group:
        together("start", base_gpus)
    threads: base_threads
    resources:
        mem_mb=base_memory,
        runtime=evaluation_minutes,
        gpu=base_gpus,
        nodes=one_machine(base_gpus),
    params:
        identity=base_identity,
        call=bapo("base"),
    message:
        "Base model: {wildcards.model}, {wildcards.task}"
    shell:
        "{params.call} 2>&1 | tee -i {log}"
