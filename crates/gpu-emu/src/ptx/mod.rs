//! An interpreter for PTX, the assembly language of CUDA devices. It supports the subset that
//! elementwise kernels need.
//!
//! - `parse`: parses the text of a module to its kernels;
//! - `decode`: decodes the text of an instruction to an [`instruction::Instruction`];
//! - `compute`: computes the arithmetic of one instruction;
//! - `run`: runs all threads of a launch, one after another.
//!
//! Threads share only global memory, and there is no barrier, so the order of threads does not
//! matter to a correct kernel. An unknown instruction is an error of the module, and never skipped.
//! Bits that CUDA does not specify, such as those of a NaN, differ from the host's, so that a
//! kernel that relies on them fails its test.

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

/// The reason why a text is not a module, or uses features that the interpreter lacks.
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

/// Returns whether the text of a module is PTX.
pub(crate) fn is_ptx(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("//"));
    first.is_some_and(|line| line.starts_with(".version"))
}
