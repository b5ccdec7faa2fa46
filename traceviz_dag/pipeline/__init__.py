"""What joins the rooms: ranks, iterations, analyses across ranks, figures and exports."""
