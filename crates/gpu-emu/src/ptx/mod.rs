//! An interpreter of PTX, the assembly language of CUDA devices: of the part that kernels on single
//! elements need.
//!
//! - `parse`: from the text of a module to its kernels;
//! - `decode`: from the text of an instruction to a [`instruction::Instruction`];
//! - `compute`: the arithmetic of one instruction;
//! - `run`: all threads of a launch, one after the other.
//!
//! There is no memory that threads share but global memory, and no barrier, so the order of threads
//! does not matter to a correct kernel. An unknown instruction is an error of the module, and never
//! skipped. Where CUDA leaves bits open, such as those of a NaN, they differ from those of
//! the host, so that a kernel which relies on them fails its test.

mod compute;
mod decode;
mod instruction;
mod parse;
mod run;

use instruction::{Instruction, Type};

pub(crate) use parse::parse;

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The types of the parameters.
    parameters: Vec<Type>,
    /// The number of registers of a thread.
    registers: usize,
    code: Vec<Instruction>,
}

/// The reason why a text is no module, or uses what the interpreter lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(crate) struct SyntaxError {
    line: usize,
    reason: String,
}

impl Entry {
    /// Returns the sizes of the parameters in bytes.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.parameters.iter().map(|parameter| parameter.size()).collect()
    }
}

/// Returns whether the text of a module is PTX, and not another format.
pub(crate) fn is_ptx(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("//"));
    first.is_some_and(|line| line.starts_with(".version"))
}
