//! Decodes the text of an instruction to an [`Instruction`].

use std::collections::BTreeMap;

use super::instruction::{Action, Binary, Comparison, Instruction, MemoryOperand, Operand, Special, Type};

/// The registers and parameters of a kernel by name.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The number and type of each register.
    pub(super) registers: BTreeMap<String, (usize, Type)>,
    /// The index and type of each parameter.
    pub(super) parameters: BTreeMap<String, (usize, Type)>,
}

/// The index of the instruction after each label.
pub(super) type Labels<'a> = BTreeMap<&'a str, usize>;

type Decoded<T> = Result<T, String>;

/// Decodes a statement of a body that is neither a label nor a declaration.
pub(super) fn decode(statement: &str, names: &Names, labels: &Labels<'_>) -> Decoded<Instruction> {
    let statement = statement.strip_suffix(';').ok_or("a missing semicolon")?;
    let (guard, rest) = match statement.strip_prefix('@') {
        Some(guarded) => {
            let (predicate, rest) = guarded.split_once(' ').ok_or("a guard without an instruction")?;
            let (name, wanted) =
                predicate.strip_prefix('!').map_or((predicate, true), |inverted| (inverted, false));
            (Some((names.of_type(name, Type::Predicate)?, wanted)), rest)
        }
        None => (None, statement),
    };
    let (operation, operands) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    let operands: Vec<&str> = operands.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
    let action = match (operation, &operands[..]) {
        ("ret", []) => Action::Return,
        ("bra", [label]) => {
            let target = *labels.get(label).ok_or_else(|| format!("no label {label}"))?;
            Action::Branch { target }
        }
        _ => action(operation, &operands, names)?,
    };
    Ok(Instruction { guard, action })
}

/// Decodes an instruction with a type.
fn action(operation: &str, operands: &[&str], names: &Names) -> Decoded<Action> {
    let unknown = || format!("no instruction {operation}");
    let parts: Vec<&str> = operation.split('.').collect();
    let kind = parts.last().and_then(|name| Type::named(name)).ok_or_else(unknown)?;
    Ok(match (&parts[..parts.len() - 1], operands) {
        (["ld", "param"], [to, place]) => {
            let name =
                place.strip_prefix('[').and_then(|place| place.strip_suffix(']')).ok_or_else(unknown)?;
            let (index, declared) =
                *names.parameters.get(name).ok_or_else(|| format!("no parameter {name}"))?;
            if declared.width() != kind.width() {
                return Err(format!("another width than that of parameter {name}"));
            }
            Action::LoadParameter { kind, to: names.of_width(to, kind)?, index }
        }
        // A register may be wider than the loaded or stored value.
        (["ld", "global"], [to, place]) => {
            Action::Load { kind, to: names.at_least(to, kind)?, address: names.address(place)? }
        }
        (["st", "global"], [place, from]) => {
            if from.starts_with('%') {
                names.at_least(from, kind)?;
            }
            Action::Store { kind, address: names.address(place)?, from: names.operand(from, None)? }
        }
        // All addresses are in global memory, so a conversion is a move.
        (["mov"] | ["cvta", "to", "global"], [to, from]) => {
            Action::Move { kind, to: names.of_width(to, kind)?, from: names.operand(from, Some(kind))? }
        }
        (["cvt", modifiers @ .., result], [to, from]) => {
            let result = Type::named(result).ok_or_else(unknown)?;
            check_conversion(modifiers, result, kind)?;
            let (to, from) = (names.of_width(to, result)?, names.operand(from, Some(kind))?);
            Action::Convert { kinds: (result, kind), to, from }
        }
        (["sqrt", "rn"], [to, from]) if matches!(kind, Type::Float(32 | 64)) => {
            Action::SquareRoot { kind, to: names.of_width(to, kind)?, from: names.operand(from, Some(kind))? }
        }
        (["setp", comparison], [to, left, right]) => {
            let comparison = comparison_named(comparison, kind).ok_or_else(unknown)?;
            let operands = names.pair([left, right], kind)?;
            Action::Compare { comparison, kind, to: names.of_type(to, Type::Predicate)?, operands }
        }
        (["selp"], [to, left, right, condition]) => {
            let operands = names.pair([left, right], kind)?;
            let condition = names.of_type(condition, Type::Predicate)?;
            Action::Select { kind, to: names.of_width(to, kind)?, operands, condition }
        }
        ([name @ ("shl" | "shr")], [to, left, right]) => {
            let binary = if *name == "shl" { Binary::ShiftLeft } else { Binary::ShiftRight };
            // The shift amount is a u32, whatever the type of the shifted value.
            let operands = (names.operand(left, Some(kind))?, names.operand(right, Some(Type::Bits(32)))?);
            Action::Compute { binary, kind, to: names.of_width(to, kind)?, operands }
        }
        ([name, modifiers @ ..], [to, left, right]) => {
            let binary = binary_named(name, modifiers, kind)?.ok_or_else(unknown)?;
            let operands = names.pair([left, right], kind)?;
            Action::Compute { binary, kind, to: names.of_width(to, kind)?, operands }
        }
        _ => return Err(unknown()),
    })
}

/// Returns the operator, or an error if a float operation has no rounding mode, because a device
/// may fuse such an operation with another.
fn binary_named(name: &str, modifiers: &[&str], kind: Type) -> Decoded<Option<Binary>> {
    let is_float = matches!(kind, Type::Float(32 | 64));
    let computes = ["add", "sub", "mul", "div"].contains(&name);
    if is_float && computes && modifiers != ["rn"] {
        return Err(format!("no rounding mode of {name}"));
    }
    Ok(match (name, modifiers, kind) {
        ("add", [], Type::Bits(16..)) => Some(Binary::Add),
        ("sub", [], Type::Bits(16..)) => Some(Binary::Sub),
        ("mul", ["lo"], Type::Bits(16..)) => Some(Binary::Mul),
        ("add", _, Type::Float(_)) if is_float => Some(Binary::Add),
        ("sub", _, Type::Float(_)) if is_float => Some(Binary::Sub),
        ("mul", _, Type::Float(_)) if is_float => Some(Binary::Mul),
        ("div", _, Type::Float(_)) if is_float => Some(Binary::Div),
        ("and", [], Type::Bits(16..) | Type::Predicate) => Some(Binary::And),
        ("or", [], Type::Bits(16..) | Type::Predicate) => Some(Binary::Or),
        ("xor", [], Type::Bits(16..) | Type::Predicate) => Some(Binary::Xor),
        _ => None,
    })
}

fn comparison_named(name: &str, kind: Type) -> Option<Comparison> {
    Some(match (name, kind) {
        ("eq", _) => Comparison::Equal,
        ("ne", _) => Comparison::NotEqual,
        ("lt", _) => Comparison::Less,
        ("le", _) => Comparison::LessOrEqual,
        ("gt", _) => Comparison::Greater,
        ("ge", _) => Comparison::GreaterOrEqual,
        ("nan", Type::Float(_)) => Comparison::Unordered,
        _ => return None,
    })
}

/// Returns an error unless a conversion that rounds has a rounding mode, and any other has none.
fn check_conversion(modifiers: &[&str], to: Type, from: Type) -> Decoded<()> {
    let rounds = match (to, from) {
        (Type::Float(to), Type::Float(from)) => to < from,
        (Type::Bits(_), Type::Bits(_)) => false,
        _ => return Err("no conversion between floats and integers".into()),
    };
    let expected: &[&str] = if rounds { &["rn"] } else { &[] };
    if modifiers == expected { Ok(()) } else { Err("another rounding mode than the conversion needs".into()) }
}

impl Names {
    fn register(&self, name: &str) -> Decoded<(usize, Type)> {
        self.registers.get(name).copied().ok_or_else(|| format!("no register {name}"))
    }

    /// Returns the register, which must have this type.
    fn of_type(&self, name: &str, kind: Type) -> Decoded<usize> {
        let (number, declared) = self.register(name)?;
        if declared == kind { Ok(number) } else { Err(format!("another type than that of {name}")) }
    }

    /// Returns the register, which must be as wide as the type.
    fn of_width(&self, name: &str, kind: Type) -> Decoded<usize> {
        let (number, declared) = self.register(name)?;
        let same = declared.width() == kind.width();
        if same { Ok(number) } else { Err(format!("another width than that of {name}")) }
    }

    /// Returns the register, which must be at least as wide as the type.
    fn at_least(&self, name: &str, kind: Type) -> Decoded<usize> {
        let (number, declared) = self.register(name)?;
        // No register has 8 bits.
        let fits = declared.width() >= kind.width();
        if fits { Ok(number) } else { Err(format!("a greater width than that of {name}")) }
    }

    fn pair(&self, [left, right]: [&str; 2], kind: Type) -> Decoded<(Operand, Operand)> {
        Ok((self.operand(left, Some(kind))?, self.operand(right, Some(kind))?))
    }

    /// Decodes a register, as wide as a type if one is given, or a constant.
    fn operand(&self, text: &str, kind: Option<Type>) -> Decoded<Operand> {
        if text.starts_with('%') {
            let special = match text {
                "%tid.x" => Some(Special::Thread),
                "%ntid.x" => Some(Special::Threads),
                "%ctaid.x" => Some(Special::Block),
                "%nctaid.x" => Some(Special::Blocks),
                _ => None,
            };
            return match (special, kind) {
                (Some(special), Some(Type::Bits(32))) => Ok(Operand::Special(special)),
                (Some(_), _) => Err(format!("another width than that of {text}")),
                (None, Some(kind)) => self.of_width(text, kind).map(Operand::Register),
                (None, None) => self.register(text).map(|(number, _)| Operand::Register(number)),
            };
        }
        let bits = match (text.get(..2), text.get(2..)) {
            (Some("0x"), Some(digits)) => u64::from_str_radix(digits, 16),
            (Some("0f"), Some(digits)) if kind.is_none_or(|kind| kind == Type::Float(32)) => {
                u64::from_str_radix(digits, 16)
            }
            (Some("0d"), Some(digits)) if kind.is_none_or(|kind| kind == Type::Float(64)) => {
                u64::from_str_radix(digits, 16)
            }
            _ => text.parse(),
        };
        bits.map(Operand::Constant).map_err(|_| format!("no constant {text}"))
    }

    /// Decodes `[%a]` or `[%a+8]`.
    fn address(&self, text: &str) -> Decoded<MemoryOperand> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let inner = inner.ok_or_else(|| format!("no address {text}"))?;
        let (name, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let offset = offset.parse().map_err(|_| format!("no offset {offset}"))?;
        Ok(MemoryOperand { base: self.of_width(name, Type::Bits(64))?, offset })
    }
}
