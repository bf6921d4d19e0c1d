"""What torch's operators are in a spec: the whole table, to which each file here adds its entries."""

from tilegen.nn import aten_choices, aten_core, aten_images, aten_maths, aten_rows, aten_views
from tilegen.nn.table import TABLE, VIEWS

__all__ = [
    "TABLE",
    "VIEWS",
    "aten_choices",
    "aten_core",
    "aten_images",
    "aten_maths",
    "aten_rows",
    "aten_views",
]
