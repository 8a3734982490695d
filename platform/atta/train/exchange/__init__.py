"""Full-graph training in which trainers read each other's hidden rows, so that each row is computed once. Rows of
others are those of this epoch or stale, as the policy of the strategy says."""
