# What the rules of sweep.smk share: a sweep's file, its slots, and the runs that it uses as they are.

from bapo.sweeps import collect as sweep_results
from bapo.sweeps import files as sweep_files
from bapo.sweeps import study as sweep_studies

SWEEPS = SCALE / "sweeps"
SWEEPS_HERE = user_errors(sweep_files.at_scale)(SETTINGS.scale)


@cache
@user_errors
def sweep_of(name):
    return sweep_files.load(name, SETTINGS)


def sweep_identity(wildcards):
    """A slot is asked again when its study has become another one; more trials do not concern those there are."""
    return user_errors(sweep_studies.identity)(sweep_of(wildcards.sweep), SETTINGS)


def sweep_runs(wildcards):
    """The runs that a sweep uses as they are, and the reference's."""
    cells = sweep_results.needed_cells(sweep_of(wildcards.sweep))
    return [f"{RUN}/summary.json".format(**vars(cell)) for cell in cells]


def sweep_start(wildcards):
    sweep = sweep_of(wildcards.sweep)
    places = [str(place).format(task=sweep.task, model=sweep.model) for place in (DATA, BASE)]
    return [f"{place}/summary.json" for place in places]


def sweep_slots(wildcards):
    return sweep_results.slot_files(sweep_of(wildcards.sweep), SETTINGS)


def sweep_resource(function):
    """What a training job of the sweep's task takes; of memory and time, more at each attempt."""

    def of(wildcards, attempt=1):
        names = Wildcards(sweep_of(wildcards.sweep))
        return function(names, attempt) if function in (memory, minutes) else function(names)

    return of


class Wildcards:
    """The names of a sweep's run as a rule's wildcards have them."""

    def __init__(self, sweep):
        self.names = vars(sweep.cell(sweep.method, sweep.seeds[0]))

    def items(self):
        return self.names.items()
