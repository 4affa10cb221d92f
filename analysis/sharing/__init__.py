"""Results that others can open, check and compare: ``bapo export``, ``bapo verify`` and ``bapo compare``.

places.py finds results in a folder, a crate or a zip file of one; crate.py describes them as an RO-Crate, packing.py
writes it and checking.py checks it; comparing.py pairs the numbers of two results, wording.py says what it found.
"""
