"""Every command that ``bapo`` hands on to the analysis has a parser there, which shows the same sentence."""

import pytest

from analysis.commands import OF_ANALYSIS
from bapo.__main__ import main


@pytest.mark.parametrize("name", OF_ANALYSIS)
def test_a_command_of_the_analysis_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0 and said.startswith(f"usage: bapo {name} ") and OF_ANALYSIS[name] in said
