//! The kernels, one function per operation.

use super::float::Float;
use super::text::{Kernel, LEN, lines};

/// The elements of a row and the rows of a group of a sum of squares, as binary logarithms. They
/// are equal to those in `comm_core`.
const ROW: u32 = 4;
const GROUP: u32 = 6;

const POINTERS: [(&str, &str); 2] = [("u64", "into"), ("u64", "from")];

fn parameters(others: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    let mut all = others.to_vec();
    all.push(("u64", LEN));
    all
}

/// Computes the address of the element at `%at`, of 2^`shift` bytes, in the array of a parameter.
fn address(base: &str, register: &str, shift: u32) -> Vec<String> {
    let offset = if shift == 0 { "%at" } else { "%offset" };
    let mut code = Vec::new();
    if shift > 0 {
        code.push(format!("shl.b64 %offset, %at, {shift};"));
    }
    code.push(format!("add.u64 {register}, %{base}, {offset};"));
    code
}

/// `into[i] = from[i] * factor`, computed in `f32`.
pub(super) fn conversions() -> Vec<Kernel> {
    let pairs = Float::ALL.into_iter().flat_map(|to| Float::ALL.map(|from| (to, from)));
    let kernel = |(to, from): (Float, Float)| {
        let round = (from == Float::F64).then(|| "cvt.rn.f32.f64 %x0, %d0;".into());
        let widen = (to == Float::F64).then(|| "cvt.f64.f32 %d0, %x0;".into());
        let body = [
            address("from", "%l0", from.shift()),
            from.load("%l0", 0),
            round.into_iter().collect(),
            lines("mul.rn.f32 %x0, %x0, %factor;"),
            widen.into_iter().collect(),
            address("into", "%l0", to.shift()),
            to.store("%l0", 0),
        ];
        Kernel {
            name: format!("comm_convert_{}_{}", to.name(), from.name()),
            parameters: parameters(&[POINTERS[0], POINTERS[1], ("f32", "factor")]),
            before: Vec::new(),
            body: body.concat(),
        }
    };
    pairs.map(kernel).collect()
}

/// `into[i] += from[i]`. Integers wrap around.
pub(super) fn additions() -> Vec<Kernel> {
    let floats = Float::ALL.map(|float| {
        let (left, right) = (float.register(0), float.register(1));
        let body = [
            address("from", "%l0", float.shift()),
            float.load("%l0", 1),
            address("into", "%l0", float.shift()),
            float.load("%l0", 0),
            vec![format!("add.rn.{} {left}, {left}, {right};", float.wide())],
            float.store("%l0", 0),
        ];
        (float.name(), body.concat())
    });
    let integers = [("u8", 0), ("u16", 1), ("u32", 2), ("u64", 3)].map(|(name, shift)| {
        // No register has 8 bits, and a store drops the upper ones.
        let (register, wide) = if shift == 3 { ("%l", "u64") } else { ("%r", "u32") };
        let [left, right] = [2, 3].map(|number| format!("{register}{number}"));
        let body = [
            address("from", "%l0", shift),
            vec![format!("ld.global.{name} {right}, [%l0];")],
            address("into", "%l0", shift),
            vec![
                format!("ld.global.{name} {left}, [%l0];"),
                format!("add.{wide} {left}, {left}, {right};"),
                format!("st.global.{name} [%l0], {left};"),
            ],
        ];
        (name, body.concat())
    });
    let kernel = |(name, body)| Kernel {
        name: format!("comm_add_{name}"),
        parameters: parameters(&POINTERS),
        before: Vec::new(),
        body,
    };
    floats.into_iter().chain(integers).map(kernel).collect()
}

/// `into[i] *= factor`.
pub(super) fn scalings() -> Vec<Kernel> {
    let kernel = |float: Float| {
        let number = float.register(0);
        let body = [
            address("into", "%l0", float.shift()),
            float.load("%l0", 0),
            vec![format!("mul.rn.{} {number}, {number}, %factor;", float.wide())],
            float.store("%l0", 0),
        ];
        Kernel {
            name: format!("comm_scale_{}", float.name()),
            parameters: parameters(&[("u64", "into"), (float.wide(), "factor")]),
            before: Vec::new(),
            body: body.concat(),
        }
    };
    Float::ALL.into_iter().map(kernel).collect()
}

/// Sums of the squares of groups of rows, one per lane: `into[g * 16 + lane]` is the sum of
/// `from[(g * 64 + row) * 16 + lane]` over the rows in order. And sums of these sums.
pub(super) fn sums() -> Vec<Kernel> {
    let squares = Float::ALL.map(|float| {
        let mut term = float.load_double("%l0");
        term.push("mul.rn.f64 %d0, %d0, %d0;".into());
        (format!("comm_squares_{}", float.name()), float, term)
    });
    let again = ("comm_sums_f64".to_owned(), Float::F64, Float::F64.load_double("%l0"));
    let kernel = |(name, float, term): (String, Float, Vec<String>)| {
        let body = [
            lines(&format!(
                "shr.u64 %index, %at, {ROW};
                 shl.b64 %index, %index, {};
                 add.u64 %limit, %index, {};
                 and.b64 %lane, %at, {};
                 add.u64 %index, %index, %lane;
                 setp.lt.u64 %short, %len, %limit;
                 selp.b64 %limit, %len, %limit, %short;
                 mov.f64 %d1, 0d0000000000000000;
                 ROW:
                 setp.ge.u64 %last, %index, %limit;
                 @%last bra STORE;
                 shl.b64 %offset, %index, {};
                 add.u64 %l0, %from, %offset;",
                ROW + GROUP,
                1 << (ROW + GROUP),
                (1 << ROW) - 1,
                float.shift()
            )),
            term,
            lines(&format!(
                "add.rn.f64 %d1, %d1, %d0;
                 add.u64 %index, %index, {};
                 bra ROW;
                 STORE:",
                1 << ROW
            )),
            address("into", "%l0", Float::F64.shift()),
            lines("st.global.f64 [%l0], %d1;"),
        ];
        let parameters = vec![POINTERS[0], POINTERS[1], ("u64", LEN), ("u64", "outputs")];
        Kernel { name, parameters, before: Vec::new(), body: body.concat() }
    };
    squares.into_iter().chain([again]).map(kernel).collect()
}

/// Sets the flag if any element is infinite or NaN: if all bits of its exponent are set.
pub(super) fn searches() -> Vec<Kernel> {
    let kernel = |float: Float| {
        let (kind, bits, mask, register) = match float {
            Float::F16 => ("u16", "b32", "0x7c00", "%r0"),
            Float::Bf16 => ("u16", "b32", "0x7f80", "%r0"),
            Float::F32 => ("u32", "b32", "0x7f800000", "%r0"),
            Float::F64 => ("u64", "b64", "0x7ff0000000000000", "%l1"),
        };
        let body = [
            address("from", "%l0", float.shift()),
            vec![
                format!("ld.global.{kind} {register}, [%l0];"),
                format!("and.{bits} {register}, {register}, {mask};"),
                format!("setp.eq.{bits} %p0, {register}, {mask};"),
                "@%p0 st.global.u32 [%flag], 1;".to_owned(),
            ],
        ];
        Kernel {
            name: format!("comm_find_{}", float.name()),
            parameters: parameters(&[("u64", "flag"), ("u64", "from")]),
            before: Vec::new(),
            body: body.concat(),
        }
    };
    Float::ALL.into_iter().map(kernel).collect()
}
