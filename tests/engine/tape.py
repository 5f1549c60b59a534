"""A CUDA graph without CUDA: operations over addresses, noted once and done again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

# Each asks for a value that a device has not computed yet, while it is only told what to do
_FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
_INTERPRETER = "triton.runtime.interpreter"


class Tape(TorchDispatchMode):
    """Notes torch's operations, and Triton's kernels where they are interpreted.

    As in a graph, what Python computed on the host is as it was, and tensors are where they were:
    a tensor that was put in another's place afterwards is not seen, and what was allocated lies at
    the same address each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], None]] = []
        self._patches = ExitStack()

    def __enter__(self) -> Tape:
        if _INTERPRETER in sys.modules:
            function = sys.modules[_INTERPRETER].InterpretedFunction
            run = function.run

            def noted(kernel: Any, *args: Any, **kwargs: Any) -> None:
                def call() -> None:
                    # by the kernel's name, a launch is no operation of torch's
                    with _disable_current_modes():
                        run(kernel, *args, **kwargs)

                call()
                self._calls.append(call)

            self._patches.enter_context(mock.patch.object(function, "run", noted))
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._patches.close()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        assert name not in _FORBIDDEN, f"{name} waits for the device under capture"
        made = func(*args, **kwargs)
        read = {_storage(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}

        def call() -> None:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                # views, and what was changed in place, are where they were
                if isinstance(old, Tensor) and _storage(old) not in read:
                    old.copy_(new)

        if not name.startswith(("empty", "new_empty")):
            self._calls.append(call)
        return made

    def replay(self) -> None:
        """Do all of it again."""
        with torch.inference_mode():
            for call in self._calls:
                call()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
