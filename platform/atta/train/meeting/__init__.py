"""How trainers meet that may be started again one by one: through notes in a store that outlives each of them."""
