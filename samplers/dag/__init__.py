"""The DAG of a mini-batch: its specification, its plan, and one batch's instance."""
