"""Configurations of other programs, written from a plan and read into one. Given are a plan with
its graph and cluster, or a file; both meet in a `Setup`, which says in this program's words what
the other one is told. Decides what each program has words for; nothing of a file is executed."""
