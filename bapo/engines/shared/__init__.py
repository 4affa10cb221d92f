"""Models, data, sampling and images for both engines. Imports ``engines.fast``, neither engine and no method."""
