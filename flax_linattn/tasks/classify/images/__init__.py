"""Classes of images, by a vision transformer: files of the user's own, or generated ones."""
