"""What every benchmark works with: hosts, processes, limits of the machine."""
