"""An example of a task of rows: capitals of the world. How rows are read is in experiments/setting/."""

import unicodedata

from bapo.tasks.rows import RowsTask


def plain(text):
    letters = unicodedata.normalize("NFKD", text)
    return "".join(c for c in letters if not unicodedata.combining(c)).casefold().strip(" .")


class Capitals(RowsTask):
    """Compare without accents, capitals and a full stop."""

    name = "capitals"
    benchmarks = {"capitals_test": "Capitals"}
    answers = "exact"  # the same words; or mathematics
    answer_in = "all"  # of a response; or box (the last \boxed{}), tag (<answer>)

    def equal(self, answer, gold):
        return plain(answer) == plain(gold)
