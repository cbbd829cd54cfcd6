"""Storage backends: keys and bytes, nothing else."""
