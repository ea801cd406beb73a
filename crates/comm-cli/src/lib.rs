//! Library half of the tool `commctl`.
