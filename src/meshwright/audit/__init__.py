"""What a present set-up costs on a cluster, and how much faster the best plan is."""
