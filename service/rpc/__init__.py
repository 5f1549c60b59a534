"""The gRPC side of the front process: protobuf types stop here."""

from cadenza.service.rpc.server import GrpcServer

__all__ = ["GrpcServer"]
