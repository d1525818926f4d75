"""``python -m simulation``, which ``make simulate-faults`` runs."""

from simulation.run import main

main()
