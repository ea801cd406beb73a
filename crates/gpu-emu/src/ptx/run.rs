//! Runs all threads of a launch, one after another.

use crate::device::access::Window;
use crate::device::memory::AccessError;

use super::Entry;
use super::compute::{compare, compute, convert, square_root};
use super::instruction::{Action, MemoryOperand, Operand, Special};

/// The largest number of instructions of a thread. A kernel that never ends exceeds it and fails.
const STEPS_MAX: u64 = 1 << 24;

/// The reason why a launch fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("{wanted} bytes at {address:#x} are not aligned")]
    Misaligned { address: u64, wanted: usize },
    #[error("a thread does not end")]
    Endless,
}

/// The position of a thread in the launch.
#[derive(Debug, Clone, Copy)]
struct Position {
    thread: u32,
    threads: u32,
    block: u32,
    blocks: u32,
}

/// The registers of a thread, and the memory that it accesses.
struct Thread<'a> {
    position: Position,
    registers: &'a mut [u64],
    window: &'a mut Window,
}

impl Entry {
    /// Runs a launch of `blocks` blocks of `threads` threads. The arguments are passed as bits.
    pub(crate) fn run(&self, blocks: u32, threads: u32, arguments: &[u64]) -> Result<(), LaunchError> {
        let mut registers = vec![0; self.registers];
        let mut window = Window::default();
        // Blocks run in reverse order, because a device starts them in no particular order.
        for block in (0..blocks).rev() {
            for thread in 0..threads {
                // Registers are uninitialized on a device. This value is not a valid address, and
                // is NaN as a float.
                registers.fill(u64::MAX);
                let position = Position { thread, threads, block, blocks };
                let mut thread = Thread { position, registers: &mut registers, window: &mut window };
                thread.run(self, arguments)?;
            }
        }
        Ok(())
    }
}

impl Thread<'_> {
    fn run(&mut self, kernel: &Entry, arguments: &[u64]) -> Result<(), LaunchError> {
        let mut at = 0;
        for _ in 0..STEPS_MAX {
            // The end of the code is an implicit return.
            let Some(instruction) = kernel.code.get(at) else { return Ok(()) };
            at += 1;
            if instruction
                .guard
                .is_some_and(|(predicate, wanted)| (self.registers[predicate] & 1 == 1) != wanted)
            {
                continue;
            }
            match instruction.action {
                Action::Branch { target } => at = target,
                Action::Return => return Ok(()),
                Action::LoadParameter { kind, to, index } => {
                    self.registers[to] = arguments.get(index).copied().unwrap_or_default() & kind.mask();
                }
                action => self.step(action)?,
            }
        }
        Err(LaunchError::Endless)
    }

    fn step(&mut self, action: Action) -> Result<(), LaunchError> {
        match action {
            Action::Load { kind, to, address } => {
                let address = self.address(address, kind.size())?;
                self.registers[to] = self.window.load(address, kind.size())?;
            }
            Action::Store { kind, address, from } => {
                let value = self.value(from) & kind.mask();
                let address = self.address(address, kind.size())?;
                self.window.store(address, kind.size(), value)?;
            }
            Action::Move { kind, to, from } => self.registers[to] = self.value(from) & kind.mask(),
            Action::Convert { kinds, to, from } => self.registers[to] = convert(kinds, self.value(from)),
            Action::Compute { binary, kind, to, operands: (left, right) } => {
                self.registers[to] = compute(binary, kind, self.value(left), self.value(right));
            }
            Action::SquareRoot { kind, to, from } => self.registers[to] = square_root(kind, self.value(from)),
            Action::Compare { comparison, kind, to, operands: (left, right) } => {
                let holds = compare(comparison, kind, self.value(left), self.value(right));
                self.registers[to] = u64::from(holds);
            }
            Action::Select { kind, to, operands: (left, right), condition } => {
                let chosen = if self.registers[condition] & 1 == 1 { left } else { right };
                self.registers[to] = self.value(chosen) & kind.mask();
            }
            // The caller handles these.
            Action::Branch { .. } | Action::Return | Action::LoadParameter { .. } => {}
        }
        Ok(())
    }

    fn value(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(number) => self.registers[number],
            Operand::Constant(bits) => bits,
            Operand::Special(special) => u64::from(match special {
                Special::Thread => self.position.thread,
                Special::Threads => self.position.threads,
                Special::Block => self.position.block,
                Special::Blocks => self.position.blocks,
            }),
        }
    }

    fn address(&self, address: MemoryOperand, wanted: usize) -> Result<u64, LaunchError> {
        let address = self.registers[address.base].wrapping_add(address.offset);
        let aligned = address.is_multiple_of(wanted as u64);
        aligned.then_some(address).ok_or(LaunchError::Misaligned { address, wanted })
    }
}
