"""The commands for people that the analysis carries out.

``bapo`` lists them and hands them on, ``python -m analysis`` says what words they take.
"""

#: name -> what it does
OF_ANALYSIS = {
    "audit": "Check the paper's printed numbers by arithmetic.",
    "claims": "Judge the paper's claims by finished runs.",
    "overview": "Draw BAPO minus GRPO of several studies in one picture.",
    "import": "Import another project's training log or evaluation as a run directory.",
    "watch": "Show progress.",
    "report": "Write one HTML page of a scale's results that opens from disk.",
    "export": "Pack a scale's results as an archive (RO-Crate).",
    "verify": "Check that an archive (RO-Crate) is whole and unchanged (exit status 0) or not (1).",
    "evidence": "Publish a study: pack what tables and figures read of its runs into one file of at most 1 MB.",
    "unpack": "Unpack a published study into a folder that every other command reads.",
    "compare": "Compare two results number by number; exit status 0: all agree, 1: not all.",
}

#: name -> how it is called
EXAMPLES = {
    "claims": ("bapo claims --study results/laptop/studies/*.json --out results/laptop",),
    "import": (
        "bapo import verl.log --task gsm8k --model qwen2.5-0.5b --method grpo",
        "bapo import trainer_state.json --task gsm8k --model qwen2.5-0.5b --method grpo --seed 2",
    ),
    "watch": ("bapo watch results/laptop",),
    "report": ("bapo report results/laptop", "bapo report results/laptop --out page.html"),
    "export": ("bapo export results/laptop --out my-results",),
    "verify": ("bapo verify my-results",),
    "evidence": ("bapo evidence --study results/laptop/studies/table1.json --out evidence",),
    "unpack": ("bapo unpack evidence/laptop/table1.zip --out published",),
    "compare": ("bapo compare evidence/laptop/table1.zip results/laptop", "bapo compare my-results results/laptop"),
}
