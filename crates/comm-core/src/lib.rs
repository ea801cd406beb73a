//! Vocabulary of the comm collective communication library: groups, dtypes, reductions, steps, and the seams between backends.
