"""Methods x seeds from one starting point at equal budgets: `webrl study CONFIG`."""
