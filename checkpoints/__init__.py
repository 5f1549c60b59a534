"""Model files on disk: where they are and what is in them. Never imports torch."""

from cadenza.checkpoints.errors import CheckpointError
from cadenza.checkpoints.folder import ModelFolder, read_folder
from cadenza.checkpoints.gguf import GgufFile, TensorInfo, read_gguf
from cadenza.checkpoints.locate import Located, locate

__all__ = [
    "CheckpointError",
    "GgufFile",
    "Located",
    "ModelFolder",
    "TensorInfo",
    "locate",
    "read_folder",
    "read_gguf",
]
