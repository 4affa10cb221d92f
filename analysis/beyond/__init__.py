"""What goes beyond the paper, each part small: how far its tables can be trusted, and studies of this suite."""
