"""Number formats, as ggml numbers them."""

FLOAT32, Q4_1, Q8_0, INT32, BFLOAT16 = 0, 3, 8, 26, 30
MULTIPLIED_BY_US = (FLOAT32, BFLOAT16, Q8_0)
