"""`python -m attngeo`, which `accelerate launch -m attngeo` starts on every process."""

from attngeo.commands.app import main

main()
