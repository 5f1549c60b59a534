"""Messages between the two processes. Importing this can never import torch (tested)."""
