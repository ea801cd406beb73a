//! What measurements are made into: pages, pictures, numbers for people, and a line that says how
//! far it is.
//!
//! | file | question |
//! |---|---|
//! | `page` | where on a page that people write does a measurement stand? |
//! | `plot` | how does it look over size? |
//! | `progress` | how far is it? |
//! | `statistics` | what do many samples say together? |
//! | `units` | how are sizes and times read and written? |

pub mod page;
pub mod plot;
pub mod progress;
pub mod statistics;
pub mod units;
