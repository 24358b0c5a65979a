"""What Midstream keeps of its promises under faults, load and attack: one module a promise."""
