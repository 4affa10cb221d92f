# These functions say what tables, figures, the ledger and the page are made of, and what makes them anew.

from bapo.project import code_digest_of, is_place, title
from bapo.store.files import sha256

TABLES, FIGURES = SCALE / "tables", SCALE / "figures"
#: where the runs of a study are listed
STUDY = str(SCALE / "studies" / "{study}.json")
#: short name -> files in the scale's folder
TARGETS = user_errors(products.targets)(SETTINGS.scale, SWEEPS_HERE)
LEDGER = products.LEDGER


def runs_of_study(name, curves):
    """List every run and base model of a study, with their evaluations; curves: of kept checkpoints too."""
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
    if products.own_studies(SETTINGS.scale):
        raise UserError("claims: this project has none; the claim check is that of the suite's own studies")
    return products.studies_of_claims(SETTINGS.scale, SCALE)


def runs_of_claims(wildcards):
    return [file for name in judged() for file in study_of(name).summaries(SCALE, curves=False)]


@cache
@user_errors
def shown_on_page():
    return products.shown_on_page(SETTINGS.scale)


def analysis_identity(wildcards):
    """Return the identity of tables and figures. They take seconds: any changed file of the suite makes them again."""
    return identity.code_identity()


@cache
@user_errors
def comparison_identity_of(study):
    figures = products.compared_with(study)
    code = [code_digest_of(figure) for figure in figures if is_place(figure)]
    return identity.digest([identity.code_identity(), *figures, *code])


def comparison_identity(wildcards):
    """Return the identity of a comparison: other figures that a study names, or a project's code of one, change it."""
    return comparison_identity_of(wildcards.study)


@user_errors
def runs_of_table(wildcards):
    """List the runs that a study's table shows. Its gates need all that they name."""
    study = study_of(wildcards.study)
    if wildcards.table == products.GATES:
        check_gates(wildcards.study, SETTINGS)
    return study.summaries(SCALE, curves=True)


@cache
@user_errors
def identity_of_question(study):
    file = studies.study_file(study)
    return identity.digest([identity.code_identity(), file.claim, file.unit, file.gates, file.decisions])


def question_identity(wildcards):
    """Return the identity of what shows or packs what a study asks, which other rules and words change."""
    return identity_of_question(wildcards.study)


def identity_of_table(wildcards):
    """Return the identity of a study's table, of which its gates alone show what it asks."""
    return (question_identity if wildcards.table == products.GATES else analysis_identity)(wildcards)


@user_errors
def page_identity(wildcards):
    """Return the identity of the page, which has also its templates, the project's title and what it shows unasked."""
    templates = Path(products.__file__).parent.glob("templates/*")
    shown = [*sorted(templates), *products.shown_where_it_exists(SCALE, SETTINGS.scale)]
    return identity.digest([analysis_identity(wildcards), str(title()), *map(sha256, shown)])


def little(wildcards, attempt):
    """Return the megabytes of a job without a model."""
    return attempt * resources.LITTLE


def folder_of_output(wildcards, output):
    """Name the folder of a job's files."""
    return Path(output[0]).parent
