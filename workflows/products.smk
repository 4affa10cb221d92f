# Tables, figures, the ledger and the report page. analysis/products.py lists them, and the files in experiments/study/
# say which of them are made of which runs. They read run directories only.


from bapo.project import about
from bapo.project import code_digest_of
from bapo.store.files import sha256

TABLES, FIGURES = SCALE / "tables", SCALE / "figures"
#: where the runs of a study are listed
STUDY = str(SCALE / products.study_file("{study}"))
#: short name -> files in the scale's folder
TARGETS = user_errors(products.targets)(SETTINGS.scale, SWEEPS_HERE)
LEDGER = user_errors(products.ledger_name)(SETTINGS.scale)
#: the paper of a project, whose claims the ledger judges
PAPER = [str(path) for path in user_errors(products.papers_files)()[:1] if LEDGER != products.LEDGER]


def runs_of_study(name, curves):
    """List every run of a study and every model it starts from, with their evaluations; curves: of kept checkpoints too."""
    return lambda wildcards: study_of(name).summaries(SCALE, curves)


@cache
@user_errors
def study_of_product(name):
    """Return the study at this scale that names a table or a figure."""
    found = products.drawn_by(products.tables_of if name in products.TABLES else products.figures_of, SETTINGS.scale)
    if name not in found:
        raise UserError(f"{name}: no study of experiments/study/ with runs at scale {SETTINGS.scale} names it")
    return found[name]


def runs_of_product(known):
    """List the runs that a table or a figure shows. known: products.TABLES or FIGURES."""

    def runs(wildcards):
        (name,) = wildcards
        return study_of(study_of_product(name)).summaries(SCALE, known[name].curves)

    return runs


def study_of_wildcard(wildcards):
    """Name the file of the study that a table or a figure shows."""
    (name,) = wildcards
    return STUDY.format(study=study_of_product(name))


@cache
@user_errors
def judged():
    """List the studies that the ledger reads."""
    if not products.has_ledger(SETTINGS.scale):
        raise UserError("claims: this project has none; name a paper with claims under `paper` in bapo.yaml")
    return products.judged(SETTINGS.scale, SCALE)


def runs_of_claims(wildcards):
    return [file for name in judged() for file in study_of(name).summaries(SCALE, curves=False)]


@cache
@user_errors
def shown_on_page():
    return products.shown_on_page(SETTINGS.scale)


def analysis_identity(wildcards):
    """Tables and figures take seconds: they are made again when any file of the suite changes."""
    return identity.code_identity()


@cache
@user_errors
def comparison_identity_of(study):
    figures = products.compared_with(study)
    code = [code_digest_of(figure) for figure in products.own_figures(study)]
    return identity.digest([identity.code_identity(), *figures, *code])


def comparison_identity(wildcards):
    """A comparison is made again when the study names other figures, or a project's code of one changes."""
    return comparison_identity_of(wildcards.study)


@user_errors
def claims_identity(wildcards):
    """The ledger is also made again when the files of a project's paper change."""
    return identity.digest([analysis_identity(wildcards), *(map(sha256, products.papers_files()) if PAPER else ())])


@user_errors
def page_identity(wildcards):
    """The page is also made again when its templates or the project's words change, and what it shows unasked."""
    templates = Path(products.__file__).parent.glob("report/templates/*")
    shown = [*sorted(templates), *products.shown_where_it_exists(SCALE, SETTINGS.scale), *products.papers_files()]
    return identity.digest([analysis_identity(wildcards), str(about()), *map(sha256, shown)])


def little(wildcards, attempt):
    """Megabytes of a job without a model."""
    return attempt * resources.LITTLE


# Short names: the files of a study (`figure6`), a table (`table2`), a figure, a sweep (`sweep_free_countdown`), and of
# all figures, tables, comparisons and sweeps. They do no work.
for target, files in TARGETS.items():

    rule:
        name:
            target
        default_target: target == "all"
        input:
            [SCALE / file for file in files],
        localrule: True


# All runs of a study with their evaluations, nothing drawn: `runs_figure6`.
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
    priority: AT_ONCE  # `bapo watch` and the table so far know the runs from it
    localrule: True  # a second, which on a cluster must not wait for the other jobs of a group
    params:
        identity=study_identity,
        call=python("bapo.describe", "--settings", SETTINGS.as_json()),
    message:
        "Runs of {wildcards.study}"
    shell:
        "{params.call} {wildcards.study} --out {output} 2>&1 | tee -i {log}"


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
        identity=analysis_identity,
        title=lambda wildcards, output: products.TABLES[wildcards.table].heading,
        call=python("analysis"),
    message:
        "Table: {wildcards.table}"
    shell:
        "{params.call} {wildcards.table} --study {input.study} --out {TABLES} 2>&1 | tee -i {log}"


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
        identity=analysis_identity,
        title=lambda wildcards, output: products.FIGURES[wildcards.figure].heading,
        call=python("analysis", "figure"),
    message:
        "Figure: {wildcards.figure}"
    shell:
        "{params.call} {wildcards.figure} --study {input.study} --out {FIGURES} 2>&1 | tee -i {log}"


# Every method of a study beside the study's reference, with the figures that the study names.
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
        identity=comparison_identity,
        title=lambda wildcards, output: f"Comparison: {wildcards.study}",
        call=python("analysis", "comparison"),
    message:
        "Comparison: {wildcards.study}"
    shell:
        "{params.call} --study {input.study} --out {TABLES} 2>&1 | tee -i {log}"


# Four rows of Table 1 with one seed, minutes after the start.
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
        identity=analysis_identity,
        call=python("analysis", "first_look"),
    message:
        "First look"
    shell:
        "{params.call} --study {input.study} --out {SCALE} 2>&1 | tee -i {log}"


# How accuracy depends on the parameters of a sweep.
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
        identity=analysis_identity,
        title=lambda wildcards, output: f"Robustness: {wildcards.sweep}",
        call=python("analysis", "robustness"),
    message:
        "Robustness: {wildcards.sweep}"
    shell:
        "{params.call} --trials {input.trials} --out {SWEEPS}/{wildcards.sweep} 2>&1 | tee -i {log}"


rule claims:
    input:
        runs_of_claims,
        studies=lambda wildcards: [STUDY.format(study=name) for name in judged()],
    output:
        report(SCALE / f"{LEDGER}.md", caption="report/product.rst", category="Claims"),
        report(SCALE / f"{LEDGER}.csv", caption="report/product.rst", category="Claims"),
        SCALE / f"{LEDGER}.json",
    log:
        LOGS / "analysis" / f"{LEDGER}.log",
    group:
        together("analysis")
    resources:
        mem_mb=little,
    params:
        identity=claims_identity,
        title=lambda wildcards, output: "Ledger of claims",
        call=python("analysis", "claims", *PAPER),
    message:
        "Ledger of claims"
    shell:
        "{params.call} --study {input.studies} --out {SCALE} 2>&1 | tee -i {log}"


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
        "{params.call} --out {output} 2>&1 | tee -i {log}"
