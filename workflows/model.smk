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
