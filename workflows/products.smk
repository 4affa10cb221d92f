# Tables, figures, the ledger, the report page and the sweeps' reports (bapo/experiments/products.py). They read run
# directories only, and only those that the study names.


# The targets of several products, and of one under another name.
for target in TARGETS:

    rule:
        name:
            target
        default_target: target == "all"
        input:
            files_of(target),
        localrule: True


rule study:
    output:
        SCALE / products.study_file("{study}"),
    log:
        LOGS / "analysis" / "{study}_runs.log",
    priority: AT_ONCE  # `bapo watch` and the table so far know the runs from it
    localrule: True  # a second, which on a cluster must not wait for the other jobs of a group
    params:
        identity=study_identity,
        call=python("bapo.experiments.studies", "--settings", SETTINGS.as_json()),
    message:
        "Runs of {wildcards.study}"
    shell:
        "{params.call} {wildcards.study} --out {output} 2>&1 | tee -i {log}"


for product in PRODUCTS:

    rule:
        name:
            f"write_{product.name}" if product.name in TARGETS else product.name
        input:
            runs_of_product(product),
            [SCALE / file for file in product.inputs],
        output:
            [outputs_of_product(product)],
        log:
            LOGS / "analysis" / f"{product.name}.log",
        priority: AT_ONCE if product.first else 0
        group:
            None if product.first else together("analysis")
        resources:
            mem_mb=lambda wildcards, attempt: attempt * resources.LITTLE,
        params:
            identity=product_identity(product),
            call=python("analysis", *product.call(SCALE)),
        message:
            product.message
        shell:
            "{params.call} 2>&1 | tee -i {log}"
