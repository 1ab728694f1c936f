"""Kubernetes quantities as numbers."""

from __future__ import annotations

from decimal import Decimal

_BINARY = {unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_DECIMAL = {unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)} | {"m": Decimal("0.001")}
_UNITS = _BINARY | _DECIMAL


def parse(quantity: str | int) -> Decimal:
    """``64Gi`` -> 68719476736, ``500m`` -> 0.5. The contract's pattern has let it through."""
    text = str(quantity)
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    return Decimal(text.removesuffix(unit)) * _UNITS.get(unit, Decimal(1))
