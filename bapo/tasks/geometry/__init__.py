"""Visual geometry: drawn diagrams and Geometry3K. Imports no method and no engine."""
