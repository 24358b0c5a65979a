"""Number formats, as ggml numbers them."""

FLOAT32, Q4_1, Q8_0, INT32, BFLOAT16 = 0, 3, 8, 26, 30
Q8_1, Q8_K, INT8, INT16, INT64, FLOAT64 = 9, 15, 24, 25, 27, 28
# By nobody, and ggml ends the process where it is asked to; a file may have a matrix of them all the same.
NOT_MULTIPLIED = (Q8_1, Q8_K, INT8, INT16, INT32, INT64, FLOAT64)
MULTIPLIED_BY_US = (FLOAT32, BFLOAT16, Q8_0)
