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
