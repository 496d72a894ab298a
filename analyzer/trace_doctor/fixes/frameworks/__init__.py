"""Where frameworks and launchers take what a script's own code would: trainers, configuration files, command lines."""
