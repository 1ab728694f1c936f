"""From the placement plan to Ray placement groups and actors."""
