"""Classification of long token sequences: ListOps, Pathfinder, bytes of texts, image pixels."""
