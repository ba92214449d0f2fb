from tests.compilation import compile_quickly  # noqa: F401
