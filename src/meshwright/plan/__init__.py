"""Plans: what runs where and how, what makes one legal, plan files, and what searches say."""
