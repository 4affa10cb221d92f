# Tables and figures. They read run directories only, and only those that the study names.


rule study:
    output:
        SCALE / "studies" / "{study}.json",
    log:
        LOGS / "analysis" / "{study}_runs.log",
    group:
        together("analysis")
    params:
        identity=study_identity,
        call=python("bapo.experiments.studies", "--settings", SETTINGS.as_json()),
    message:
        "Runs of {wildcards.study}"
    shell:
        "{params.call} {wildcards.study} --out {output} 2>&1 | tee -i {log}"


rule write_table1:
    input:
        runs_and_evaluations("table1"),
        study=SCALE / "studies" / "table1.json",
    output:
        csv=report(TABLES / "table1.csv", caption="report/table1.rst", category="Tables"),
        md=report(TABLES / "table1.md", caption="report/table1.rst", category="Tables"),
        tex=TABLES / "table1.tex",
        differences=report(TABLES / "table1_differences.csv", caption="report/differences.rst", category="Tables"),
    log:
        LOGS / "analysis" / "table1.log",
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis", "table1"),
        out=lambda wildcards, output: Path(output.csv).parent,
    message:
        "Table 1"
    shell:
        "{params.call} --study {input.study} --out {params.out} 2>&1 | tee -i {log}"


rule figure:
    input:
        runs_of_figure,
        study=study_of_figure,
    output:
        pdf=FIGURES / "{figure}.pdf",
        png=FIGURES / "{figure}.png",
        svg=report(FIGURES / "{figure}.svg", caption="report/figure.rst", category="Figures"),
        csv=FIGURES / "{figure}.csv",
    log:
        LOGS / "analysis" / "{figure}.log",
    wildcard_constraints:
        figure="|".join(FIGURE_STUDIES),
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis", "figure"),
        out=lambda wildcards, output: Path(output.csv).parent,
    message:
        "Figure: {wildcards.figure}"
    shell:
        "{params.call} {wildcards.figure} --study {input.study} --out {params.out} 2>&1 | tee -i {log}"


rule figures:
    input:
        figure_files,
