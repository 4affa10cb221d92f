# The ledger of claims, from the runs of every study that an entry of analysis/claims/ names.

from analysis.claims import entries

#: those that have runs at this scale; of the others the ledger says that there are none
CLAIMED = user_errors(studies.at_scale)(user_errors(entries.studies_named)(), SETTINGS.scale)


rule claims:
    input:
        *[runs_and_evaluations(name) for name in CLAIMED],
        studies=[SCALE / "studies" / f"{name}.json" for name in CLAIMED],
    output:
        md=report(SCALE / "claims.md", caption="report/claims.rst", category="Claims"),
        csv=report(SCALE / "claims.csv", caption="report/claims.rst", category="Claims"),
        json=SCALE / "claims.json",
    log:
        LOGS / "analysis" / "claims.log",
    group:
        together("analysis")
    resources:
        mem_mb=little_memory,
    params:
        identity=analysis_identity,
        call=python("analysis", "claims"),
        out=lambda wildcards, output: Path(output.md).parent,
    message:
        "Ledger of claims"
    shell:
        "{params.call} --study {input.studies} --out {params.out} 2>&1 | tee -i {log}"
