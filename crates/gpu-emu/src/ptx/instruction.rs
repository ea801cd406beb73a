//! Decoded instructions.

/// The type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// Untyped bits, or an unsigned integer.
    Bits(u32),
    Float(u32),
    Predicate,
}

impl Type {
    /// Returns the type with this name, given without its leading dot.
    pub(super) fn named(name: &str) -> Option<Self> {
        if name == "pred" {
            return Some(Self::Predicate);
        }
        let kind = name.get(..1)?;
        match (kind, name.get(1..)?.parse().ok()?) {
            ("b" | "u", width @ (8 | 16 | 32 | 64)) => Some(Self::Bits(width)),
            ("f", width @ (16 | 32 | 64)) => Some(Self::Float(width)),
            _ => None,
        }
    }

    pub(super) const fn width(self) -> u32 {
        match self {
            Self::Bits(width) | Self::Float(width) => width,
            Self::Predicate => 1,
        }
    }

    /// Returns the size in bytes.
    pub(super) const fn size(self) -> usize {
        self.width().div_ceil(8) as usize
    }

    /// Returns the bits of a register that belong to the type.
    pub(super) const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.width())
    }
}

/// A register by number, a constant by its bits, or a special register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    Register(usize),
    Constant(u64),
    Special(Special),
}

/// A special register with the position of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
}

/// An address in global memory: a base register and an offset in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryOperand {
    pub(super) base: usize,
    pub(super) offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    /// The lower half of a product of integers; a product of floats.
    Mul,
    Div,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// Whether an operand is NaN.
    Unordered,
}

/// The effect of an instruction. `to` is the register of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    LoadParameter {
        kind: Type,
        to: usize,
        index: usize,
    },
    Load {
        kind: Type,
        to: usize,
        address: MemoryOperand,
    },
    Store {
        kind: Type,
        address: MemoryOperand,
        from: Operand,
    },
    Move {
        kind: Type,
        to: usize,
        from: Operand,
    },
    Convert {
        kinds: (Type, Type),
        to: usize,
        from: Operand,
    },
    Compute {
        binary: Binary,
        kind: Type,
        to: usize,
        operands: (Operand, Operand),
    },
    SquareRoot {
        kind: Type,
        to: usize,
        from: Operand,
    },
    Compare {
        comparison: Comparison,
        kind: Type,
        to: usize,
        operands: (Operand, Operand),
    },
    Select {
        kind: Type,
        to: usize,
        operands: (Operand, Operand),
        condition: usize,
    },
    /// Continues at the instruction with this index.
    Branch {
        target: usize,
    },
    Return,
}

/// An instruction. If it is guarded, it executes only if the predicate register has this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) guard: Option<(usize, bool)>,
    pub(super) action: Action,
}
