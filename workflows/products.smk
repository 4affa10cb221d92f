# Tables, figures, the ledger and the report page are made here. analysis/products.py lists them, and the files in
# experiments/study/ say which of them are made of which runs. They read run directories only.


# These are short names: of the files of a study (`figure6`), a table (`table2`), a figure, a sweep
# (`sweep_free_countdown`), and of all figures, tables, comparisons and sweeps. They do no work.
for target, files in TARGETS.items():

    rule:
        name:
            target
        input:
            [SCALE / file for file in files],
        localrule: True


# `runs_figure6` makes all runs of a study with their evaluations, and draws nothing.
for study_name in places.options("study"):

    rule:
        name:
            f"runs_{study_name}"
        input:
            runs_of_study(study_name, curves=True),
        localrule: True


rule study:
    output:
        STUDY,
    log:
        LOGS / "analysis" / "{study}_runs.log",
    priority: AT_ONCE  # `bapo watch` knows the runs from it
    localrule: True  # a second, which on a cluster must not wait for the other jobs of a group
    params:
        identity=study_identity,
        call=python("bapo", "describe", "--settings", SETTINGS.as_json()),
    message:
        "Runs of {wildcards.study}"
    shell:
        "{params.call} {wildcards.study:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule table:
    input:
        runs_of_product(products.TABLES),
        study=study_of_wildcard,
    output:
        report(TABLES / "{table}.md", caption="report/product.rst", category="Tables"),
        report(TABLES / "{table}.csv", caption="report/product.rst", category="Tables"),
        TABLES / "{table}.tex",
    log:
        LOGS / "analysis" / "{table}.log",
    wildcard_constraints:
        table="|".join(products.TABLES),
    group:
        together("analysis")
    resources:
        mem_mb=little,
    params:
        out=folder_of_output,
        identity=analysis_identity,
        title=lambda wildcards, output: products.TABLES[wildcards.table].heading,
        call=python("analysis"),
    message:
        "Table: {wildcards.table}"
    shell:
        "{params.call} {wildcards.table:q} --study {input.study:q} --out {params.out:q} 2>&1 | tee -i {log:q}"


rule figure:
    input:
        runs_of_product(products.FIGURES),
        study=study_of_wildcard,
    output:
        report(FIGURES / "{figure}.svg", caption="report/product.rst", category="Figures"),
        FIGURES / "{figure}.csv",
        FIGURES / "{figure}.pdf",
        FIGURES / "{figure}.png",
    log:
        LOGS / "analysis" / "{figure}.log",
    wildcard_constraints:
        figure="|".join(products.FIGURES),
    group:
        together("analysis")
    resources:
        mem_mb=little,
    params:
        out=folder_of_output,
        identity=analysis_identity,
        title=lambda wildcards, output: products.FIGURES[wildcards.figure].heading,
        call=python("analysis", "figure"),
    message:
        "Figure: {wildcards.figure}"
    shell:
        "{params.call} {wildcards.figure:q} --study {input.study:q} --out {params.out:q} 2>&1 | tee -i {log:q}"


# This shows every method of a study beside the study's reference, with the figures that the study names.
rule comparison:
    input:
        lambda wildcards: study_of(wildcards.study).summaries(SCALE, curves=False),
        study=STUDY,
    output:
        report(TABLES / "comparison_{study}.md", caption="report/product.rst", category="Comparisons"),
        TABLES / "comparison_{study}.csv",
        TABLES / "comparison_{study}.tex",
    log:
        LOGS / "analysis" / "comparison_{study}.log",
    group:
        together("analysis")
    resources:
        mem_mb=little,
    params:
        out=folder_of_output,
        identity=comparison_identity,
        title=lambda wildcards, output: f"Comparison: {wildcards.study}",
        call=python("analysis", "comparison"),
    message:
        "Comparison: {wildcards.study}"
    shell:
        "{params.call} --study {input.study:q} --out {params.out:q} 2>&1 | tee -i {log:q}"


# These are a study's other tables: its gates and decisions, prompts by solve rate, specifications, asymptotes.
use rule table as table_of_study with:
    input:
        runs_of_table,
        study=STUDY,
    output:
        report(TABLES / "{table}_{study}.md", caption="report/product.rst", category="Comparisons"),
        TABLES / "{table}_{study}.csv",
        TABLES / "{table}_{study}.tex",
    log:
        LOGS / "analysis" / "{table}_{study}.log",
    wildcard_constraints:
        table="|".join(name for name in products.PER_STUDY if name != products.COMPARISON),
    params:
        identity=identity_of_table,
        title=lambda wildcards, output: f"{products.OTHERS[wildcards.table].title}: {wildcards.study}",
    message:
        "Table: {wildcards.table} of {wildcards.study}"


# This packs what tables and figures read of a study's runs, for the repository: `evidence/laptop/table1.zip`.
rule evidence:
    input:
        lambda wildcards: study_of(wildcards.study).summaries(SCALE, curves=True),
        study=STUDY,
    output:
        f"evidence/{SCALE.name}/{{study}}.zip",
    log:
        LOGS / "analysis" / "evidence_{study}.log",
    group:
        together("analysis")
    resources:
        mem_mb=little,
    params:
        identity=question_identity,
        call=python("analysis", "evidence"),
    message:
        "Evidence: {wildcards.study}"
    shell:
        "{params.call} --study {input.study:q} --out evidence 2>&1 | tee -i {log:q}"


# This shows four rows of Table 1 with one seed, minutes after the start.
rule first_look:
    input:
        lambda wildcards: study_of(products.MAIN).first_look(SCALE),
        study=STUDY.format(study=products.MAIN),
    output:
        SCALE / "first_look.md",
        SCALE / "first_look.png",
    log:
        LOGS / "analysis" / "first_look.log",
    priority: AT_ONCE
    resources:
        mem_mb=little,
    params:
        out=folder_of_output,
        identity=analysis_identity,
        call=python("analysis", "first_look"),
    message:
        "First look"
    shell:
        "{params.call} --study {input.study:q} --out {params.out:q} 2>&1 | tee -i {log:q}"


# This shows how accuracy depends on the parameters of a sweep.
rule robustness:
    input:
        sweep_runs,
        trials=SWEEPS / "{sweep}" / "trials.json",
    output:
        report(SWEEPS / "{sweep}" / "robustness.md", caption="report/product.rst", category="Sweeps"),
        report(SWEEPS / "{sweep}" / "robustness.svg", caption="report/product.rst", category="Sweeps"),
        multiext(str(SWEEPS / "{sweep}" / "robustness"), ".csv", ".pdf", ".png"),
    log:
        LOGS / "analysis" / "robustness_{sweep}.log",
    group:
        together("analysis")
    resources:
        mem_mb=little,
    params:
        out=folder_of_output,
        identity=analysis_identity,
        title=lambda wildcards, output: f"Robustness: {wildcards.sweep}",
        call=python("analysis", "robustness"),
    message:
        "Robustness: {wildcards.sweep}"
    shell:
        "{params.call} --trials {input.trials:q} --out {params.out:q} 2>&1 | tee -i {log:q}"


use rule comparison as claims with:
    input:
        runs_of_claims,
        study=lambda wildcards: [STUDY.format(study=name) for name in judged()],
    output:
        report(SCALE / f"{LEDGER}.md", caption="report/product.rst", category="Claims"),
        report(SCALE / f"{LEDGER}.csv", caption="report/product.rst", category="Claims"),
        SCALE / f"{LEDGER}.json",
    log:
        LOGS / "analysis" / f"{LEDGER}.log",
    params:
        identity=analysis_identity,
        title=lambda wildcards, output: "Claim check",
        call=python("analysis", "claims"),
    message:
        "Claim check"


rule report:
    input:
        lambda wildcards: [SCALE / file for file in shown_on_page()],
    output:
        report(SCALE / products.PAGE, caption="report/product.rst", category="Report"),
    log:
        LOGS / "analysis" / "report.log",
    group:
        together("analysis")
    resources:
        mem_mb=little,
    params:
        identity=page_identity,
        title=lambda wildcards, output: "Report",
        call=python("analysis", "report", str(SCALE)),
    message:
        "Report"
    shell:
        "{params.call} --out {output:q} 2>&1 | tee -i {log:q}"
