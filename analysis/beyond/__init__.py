"""What goes beyond the paper: tables and figures of its runs and of more."""
