//! Tests of the simulator, in one program, because it takes less time to build than one per file.

mod cost;
mod in_process;
mod incidents;
mod mutate;
mod network;
mod schedules;
mod swarm;
mod verify;
