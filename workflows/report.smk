# One HTML page of everything that lies in the scale's folder; and what Snakemake's own report says of it (report/).


report: "report/workflow.rst"


rule report:
    input:
        report_files,
    output:
        report(SCALE / "report.html", caption="report/page.rst", category="Report"),
    log:
        LOGS / "analysis" / "report.log",
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=report_identity,
        call=python("analysis", "report", str(SCALE)),
    message:
        "Report"
    shell:
        "{params.call} --out {output} 2>&1 | tee -i {log}"
