"""ggml, llama.cpp's tensor library, where it is installed: narrow weights, and layers as its graphs."""
