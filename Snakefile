# The whole study: problems -> base models -> training -> evaluation -> tables and figures.
#
#   snakemake --cores all table1                          at the laptop scale (the default)
#   snakemake --cores all first_look                      four of its rows with one seed, in minutes; also `bapo demo`
#   snakemake --cores all table1 --config scale=paper     the paper's own runs
#   snakemake --cores all figures tables claims report    every table and figure of the paper, the ledger, the report
#   snakemake --cores all regimes                         a study beyond the paper; also offpolicy, fidelity, controls
#   snakemake --cores all sweep                           how accuracy depends on BAPO's parameters: docs/sweeps.md
#   snakemake -n all                                      what would be done
#   snakemake --cores all runs_figure6                    the runs of one study, nothing drawn
#
# The keys of --config: bapo/experiments/settings.py. Which runs a table needs: experiments/study/. What each target
# makes: analysis/products.py. profiles/default is loaded by itself.


report: "workflows/report/workflow.rst"


include: "workflows/common.smk"
include: "workflows/progress.smk"
include: "workflows/jobs.smk"
include: "workflows/drawn.smk"
include: "workflows/products.smk"


# Snakemake forgets the default target of a file that another includes.
workflow.default_target = "all"


onstart:
    check_gpus()
    check_claims()
    hold_folders()
    start_warm_process()
    unlimited_starts()
    show_progress()


onsuccess:
    end_progress()
    show_closing()
    print(closing_message())


onerror:
    end_progress()
    print(failure_message(log), closing_message(since=BEGAN), sep="\n")
