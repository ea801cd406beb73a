//! Collective schedules, their executor and the communicator of the comm library, over any transport.
