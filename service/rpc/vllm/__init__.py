"""vLLM's own gRPC service, `vllm.grpc.engine.VllmEngine`, for gateways and clients that speak it.

Its messages come with the extra `vllm-grpc`, the package `smg-grpc-proto`. Only the modules in this
folder import that, and only `open_handlers` imports them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import grpc
import structlog

from cadenza.service.generator import Generator

if TYPE_CHECKING:
    from cadenza.service.admin import AdminAccess
    from cadenza.service.rpc.servicer import GenerationServicer

SERVICE = "vllm.grpc.engine.VllmEngine"

_PACKAGE = "smg_grpc_proto"

_log = structlog.get_logger(__name__)


def open_handlers(
    generator: Generator, calls: GenerationServicer, access: AdminAccess | None
) -> grpc.GenericRpcHandler | None:
    """The service of `generator`, or None where its messages are not installed, or of no use.

    Its calls are run by `calls`. What is an administrator's is for whom `access` lets in; None:
    nobody.
    """
    if find_spec(_PACKAGE) is None:
        return None
    try:
        from cadenza.service.rpc.vllm.fields import missing
        from cadenza.service.rpc.vllm.servicer import VllmServicer

        if lacking := missing():
            raise AttributeError(f"it has no {', '.join(lacking)}; another version may")
        return VllmServicer(generator, calls, access).handlers()
    # Whatever a package raises that is too old or too new for this protobuf, or whose file names
    # another has taken. It may be here for another program's sake: this one serves without it.
    except Exception as error:
        _log.warning("vllm grpc is not served", package=_PACKAGE, reason=str(error))
        return None
