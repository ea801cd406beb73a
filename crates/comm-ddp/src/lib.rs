//! Data parallel training over any communicator: gradient buckets that overlap with backward, samplers.
