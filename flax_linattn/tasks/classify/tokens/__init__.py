"""Classes of long sequences of tokens: ListOps, Pathfinder, bytes of texts, pixels of images."""
