//! Tests of the communicator and its schedules, in one program, because it takes less time to build
//! than one per file.

mod accumulate;
mod asynchronous;
mod background_virtual_time;
mod broken_connections;
mod coalesced;
mod collectives;
mod common;
mod conformance;
mod costs;
mod deterministic;
mod failures;
mod finalize;
mod flight_record;
mod groups;
mod half_averages;
mod hostile;
mod metrics;
mod mismatches;
mod monitored_barrier;
mod movement;
mod nan;
mod network;
mod point_to_point;
mod properties;
mod scans;
mod schedules;
mod settings;
mod shrink;
mod staging;
mod thousands;
mod user_types;
mod virtual_time;
