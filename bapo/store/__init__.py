"""Files of results folders: writing, reading, locks, manifests, provenance. Imports no engine and no torch."""
