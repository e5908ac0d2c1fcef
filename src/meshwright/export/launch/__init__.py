"""What starts the ranks of a plan on its hosts: given the devices in the order of their ranks and
the command of one rank, gives torchrun lines, a Slurm batch file, a rank file and a Kubernetes
manifest, each of which pins ranks to the plan's devices."""
