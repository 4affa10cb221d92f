"""Results that are shared with others: imported logs, archives, evidence of a study, and two results side by side."""
