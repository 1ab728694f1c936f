"""Reward sources -> one ``Reward`` a rollout. This file stays empty: the user's process imports the package."""
