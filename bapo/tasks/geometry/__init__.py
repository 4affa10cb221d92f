"""Visual geometry: drawn diagrams and Geometry3K. Imports no method; engines only for their image processors."""
