//! Parses the text of a module to its kernels.

use std::collections::BTreeMap;

use super::decode::{Labels, Names, decode};
use super::instruction::Type;
use super::{Entry, SyntaxError};

/// The statements of a text, one per line, with their line numbers.
struct Statements<'a> {
    lines: Vec<(usize, &'a str)>,
}

/// Parses a module.
pub(crate) fn parse(text: &str) -> Result<Vec<Entry>, SyntaxError> {
    let mut statements = Statements::new(text);
    let mut kernels = Vec::new();
    while let Some((line, statement)) = statements.next() {
        if let Some(head) = statement.strip_prefix(".visible .entry ") {
            kernels.push(kernel(line, head, &mut statements)?);
        } else if ![".version ", ".target ", ".address_size 64"]
            .iter()
            .any(|known| statement.starts_with(known))
        {
            return Err(unknown(line, statement));
        }
    }
    Ok(kernels)
}

/// Parses a kernel, from its name and parameters to its end.
fn kernel(line: usize, head: &str, statements: &mut Statements<'_>) -> Result<Entry, SyntaxError> {
    let (name, parameters) = signature(head).ok_or_else(|| unknown(line, head))?;
    let mut names = Names::default();
    for (index, (kind, parameter)) in parameters.iter().enumerate() {
        names.parameters.insert(parameter.clone(), (index, *kind));
    }
    match statements.next() {
        Some((_, "{")) => {}
        _ => return Err(SyntaxError { line, reason: "a kernel without a body".into() }),
    }
    let mut labels: Labels<'_> = BTreeMap::new();
    let mut body = Vec::new();
    loop {
        let (line, statement) =
            statements.next().ok_or_else(|| SyntaxError { line, reason: "a body without an end".into() })?;
        if statement == "}" {
            break;
        } else if let Some(declared) = statement.strip_prefix(".reg ") {
            declare(declared, &mut names).ok_or_else(|| unknown(line, statement))?;
        } else if let Some(label) = statement.strip_suffix(':') {
            labels.insert(label, body.len());
        } else {
            body.push((line, statement));
        }
    }
    let decoded = body.iter().map(|(line, statement)| {
        decode(statement, &names, &labels)
            .map_err(|reason| SyntaxError { line: *line, reason: format!("{reason} in \"{statement}\"") })
    });
    let parameters = parameters.into_iter().map(|(kind, _)| kind).collect();
    Ok(Entry { name, parameters, registers: names.registers.len(), code: decoded.collect::<Result<_, _>>()? })
}

/// Parses `name(.param .u64 a, .param .f32 b)`.
fn signature(head: &str) -> Option<(String, Vec<(Type, String)>)> {
    let (name, list) = head.strip_suffix(')')?.split_once('(')?;
    let parameter = |text: &str| {
        let (kind, name) = text.trim().strip_prefix(".param .")?.split_once(' ')?;
        Some((Type::named(kind)?, name.trim().to_owned()))
    };
    Some((name.trim().to_owned(), list.split(',').map(parameter).collect::<Option<_>>()?))
}

/// Parses `.u32 %a, %b;`.
fn declare(declared: &str, names: &mut Names) -> Option<()> {
    let (kind, list) = declared.strip_prefix('.')?.strip_suffix(';')?.split_once(' ')?;
    let kind = Type::named(kind)?;
    for name in list.split(',').map(str::trim) {
        let number = names.registers.len();
        let fresh =
            name.starts_with('%') && names.registers.insert(name.to_owned(), (number, kind)).is_none();
        fresh.then_some(())?;
    }
    Some(())
}

fn unknown(line: usize, statement: &str) -> SyntaxError {
    SyntaxError { line, reason: format!("the emulator does not know \"{statement}\"") }
}

impl<'a> Statements<'a> {
    fn new(text: &'a str) -> Self {
        let mut lines: Vec<(usize, &str)> = text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default().trim()))
            .filter(|(_, line)| !line.is_empty())
            .collect();
        lines.reverse();
        Self { lines }
    }

    /// Returns the next statement.
    fn next(&mut self) -> Option<(usize, &'a str)> {
        self.lines.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 6.0\n.target sm_50\n.address_size 64\n";

    fn error(body: &str) -> String {
        let text =
            format!("{HEAD}.visible .entry k(.param .u64 a)\n{{\n.reg .u64 %a;\n.reg .f32 %x;\n{body}\n}}\n");
        parse(&text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_known_is_an_error_with_its_line() {
        for (body, reason) in [
            ("bar.sync 0;", "bar.sync"),
            ("ld.shared.u64 %a, [%a];", "ld.shared"),
            ("add.u64 %a, %a, %b;", "%b"),
            ("add.u64 %a, %x, 1;", "width"),
            ("add.f32 %x, %x, %x;", "rounding"),
            ("add.u64 %a, %a", "semicolon"),
            ("bra OUT;", "OUT"),
            ("mov.u64 %a, %laneid;", "%laneid"),
            ("mov.f32 %x, 1.5;", "1.5"),
        ] {
            let error = error(body);
            assert!(error.starts_with("line 8: ") && error.contains(reason), "{body}: {error}");
        }
        assert!(parse(".version 6.0\n.func f()\n").is_err());
        assert!(parse(".version 6.0\n.visible .entry k(.param .u64 a)\n{\nret;\n").is_err());
    }

    #[test]
    fn a_kernel_has_a_name_parameters_and_code() {
        let text = format!(
            "// A comment.\n{HEAD}.visible .entry first(.param .u64 a, .param .f32 b)\n{{\n.reg .pred %p;\nret;\n}}\n\
             .visible .entry second(.param .u64 a)\n{{\n.reg .u64 %a, %b;\nagain:\nld.param.u64 %a, [a];\nbra again;\n}}\n"
        );
        let kernels = parse(&text).unwrap();
        assert_eq!(kernels.iter().map(|kernel| &kernel.name[..]).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(kernels[0].sizes(), [8, 4]);
        assert_eq!((kernels[1].registers, kernels[1].code.len()), (2, 2));
    }
}
