"""Which converter turns a value of a foreign library into columns."""

from functools import cache
from importlib import import_module

from snapfmt.writing.rows import Converter


@cache
def converter_for(kind: type) -> Converter | None:
    """The converter for values of this type, or None for what numpy and Python hold.

    torch is recognised by name: it is imported only where the caller has imported it already.
    """
    if not any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__):
        return None
    bridge = import_module("snapfmt.adapters.torch_values")
    return Converter(
        bridge.signature_of,
        bridge.uniform_of,
        bridge.from_tensors,
        bridge.sizes_of,
        bridge.rows_of,
        bridge.together_of,
    )
