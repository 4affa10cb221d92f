"""The commands for people that the analysis carries out.

``python -m bapo`` lists them and hands them on, ``python -m analysis`` says what words they take.
"""

#: name -> what it does
OF_ANALYSIS = {
    "audit": "Check the paper's printed numbers by arithmetic.",
    "claims": "Judge the paper's claims by finished runs.",
    "overview": "Draw BAPO minus GRPO of several studies in one picture.",
    "import": "Import another project's training log or evaluation as a run directory.",
    "watch": "Show what runs and what is done.",
    "report": "Write one HTML page of a scale's results that opens from disk.",
    "export": "Pack a scale's results as an RO-Crate.",
    "verify": "Check that an RO-Crate is whole and unchanged (exit status 0) or not (1).",
    "evidence": "Pack what tables and figures read of a study's runs into one file of at most 1 MB.",
    "unpack": "Write the runs of evidence into a folder that every other command reads.",
    "compare": "Say which numbers of two results agree within their intervals; exit status 0: all, 1: not all.",
}
