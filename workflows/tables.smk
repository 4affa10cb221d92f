# Tables 2 to 4, a table of every other study, the difficulty regimes and the theory monitor.


localrules:
    table2,
    table3,
    table4,
    tables,
    comparisons,
    theory,


rule table2:
    input:
        TABLES / "table2.md",


rule table3:
    input:
        TABLES / "table3.md",


rule table4:
    input:
        TABLES / "table4.md",


rule tables:
    input:
        table_files,


# Studies beyond the paper's own; each is a target too.
rule comparisons:
    input:
        comparison_files,


for study_name in BEYOND:
    if study_name != "regimes":

        rule:
            name:
                study_name
            input:
                TABLES / f"comparison_{study_name}.md",
            localrule: True


rule theory:
    input:
        TABLES / "theory_monitor.md",


rule write_table:
    input:
        runs_and_evaluations("table1"),
        study=SCALE / "studies" / "table1.json",
    output:
        csv=report(TABLES / "{table}.csv", caption="report/table.rst", category="Tables"),
        md=report(TABLES / "{table}.md", caption="report/table.rst", category="Tables"),
        tex=TABLES / "{table}.tex",
    log:
        LOGS / "analysis" / "{table}.log",
    wildcard_constraints:
        table="table[234]",
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis"),
        out=lambda wildcards, output: Path(output.csv).parent,
    message:
        "{wildcards.table}"
    shell:
        "{params.call} {wildcards.table} --study {input.study} --out {params.out} 2>&1 | tee -i {log}"


rule comparison:
    input:
        lambda wildcards: runs_and_evaluations(wildcards.study)(wildcards),
        study=SCALE / "studies" / "{study}.json",
    output:
        csv=TABLES / "comparison_{study}.csv",
        md=report(TABLES / "comparison_{study}.md", caption="report/comparison.rst", category="Comparisons"),
        tex=TABLES / "comparison_{study}.tex",
    log:
        LOGS / "analysis" / "comparison_{study}.log",
    wildcard_constraints:
        study="(?!regimes)[^/.]+",
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis", "comparison"),
        out=lambda wildcards, output: Path(output.csv).parent,
    message:
        "Comparison: {wildcards.study}"
    shell:
        "{params.call} --study {input.study} --out {params.out} 2>&1 | tee -i {log}"


rule regimes:
    input:
        runs_and_evaluations("regimes"),
        study=SCALE / "studies" / "regimes.json",
    output:
        multiext(str(TABLES / "comparison_regimes"), ".csv", ".md", ".tex"),
        multiext(str(TABLES / "regimes_figure"), ".csv", ".pdf", ".png", ".svg"),
        csv=TABLES / "regimes.csv",
        md=report(TABLES / "regimes.md", caption="report/regimes.rst", category="Comparisons"),
        tex=TABLES / "regimes.tex",
    log:
        LOGS / "analysis" / "regimes.log",
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis", "comparison"),
        out=lambda wildcards, output: Path(output.csv).parent,
    message:
        "Difficulty regimes"
    shell:
        "{params.call} --study {input.study} --out {params.out} 2>&1 | tee -i {log}"


rule theory_monitor:
    input:
        runs_and_evaluations("table1"),
        study=SCALE / "studies" / "table1.json",
    output:
        multiext(str(TABLES / "theory_monitor"), ".md", ".tex", ".pdf", ".png", ".svg"),
        csv=report(TABLES / "theory_monitor.csv", caption="report/theory.rst", category="Theory"),
    log:
        LOGS / "analysis" / "theory_monitor.log",
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis", "theory"),
        out=lambda wildcards, output: Path(output.csv).parent,
    message:
        "Theory monitor"
    shell:
        "{params.call} --study {input.study} --out {params.out} 2>&1 | tee -i {log}"


# Every kept checkpoint, on validation and on test: what choosing among them on the test set would have gained.
rule checkpoint_choice:
    input:
        runs_and_evaluations("table1"),
        curves("table1"),
        study=SCALE / "studies" / "table1.json",
    output:
        md=report(TABLES / "checkpoint_choice.md", caption="report/checkpoint_choice.rst", category="Tables"),
        csv=TABLES / "checkpoint_choice.csv",
        tex=TABLES / "checkpoint_choice.tex",
    log:
        LOGS / "analysis" / "checkpoint_choice.log",
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis", "checkpoint-choice"),
        out=lambda wildcards, output: Path(output.md).parent,
    message:
        "Checkpoint choice"
    shell:
        "{params.call} --study {input.study} --out {params.out} 2>&1 | tee -i {log}"
