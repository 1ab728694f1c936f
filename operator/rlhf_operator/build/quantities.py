"""Kubernetes quantities as numbers."""

from __future__ import annotations

from decimal import Decimal

_UNITS = {
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


def amount(quantity: str | int) -> Decimal:
    """``500m`` -> 0.5, ``64Gi`` -> 68719476736. The text has passed the contract's pattern."""
    if isinstance(quantity, int):
        return Decimal(quantity)
    number = quantity.rstrip("kKMGTPEim")
    unit = quantity[len(number) :]
    return Decimal(number) * (_UNITS[unit] if unit else 1)
