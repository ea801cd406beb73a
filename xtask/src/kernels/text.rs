//! The text of one kernel: its registers, and the loop over its elements.

use std::collections::BTreeSet;
use std::fmt::Write;

/// An elementwise kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    /// Type and name of each parameter. One of type `u64` that is not [`LEN`] is an address.
    pub(super) parameters: Vec<(&'static str, &'static str)>,
    /// The instructions before the loop.
    pub(super) before: Vec<String>,
    /// The instructions for the element at `%at`.
    pub(super) body: Vec<String>,
}

/// The parameter with the number of elements.
pub(super) const LEN: &str = "len";

/// Instructions, one per line of a text.
pub(super) fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The types of registers, by the first letter of the name or, for longer names, by the name.
const REGISTERS: [(&str, &[&str]); 6] = [
    (".pred", &["p", "end", "last", "short"]),
    (".b16", &["h"]),
    (".u32", &["r", "block", "blocks", "thread", "threads"]),
    (".u64", &["l", "at", "stride", "offset", "index", "lane", "limit", "len", "outputs"]),
    (".f32", &["x"]),
    (".f64", &["d"]),
];

impl Kernel {
    /// Writes the kernel. Threads take elements in turn, so that any number of threads works, and
    /// adjacent threads access adjacent elements.
    pub(super) fn write(&self, out: &mut String) {
        let parameters: Vec<String> =
            self.parameters.iter().map(|(kind, name)| format!(".param .{kind} {name}")).collect();
        let mut code = Vec::new();
        for (kind, name) in &self.parameters {
            code.push(format!("ld.param.{kind} %{name}, [{name}];"));
            if *kind == "u64" && ![LEN, "outputs"].contains(name) {
                code.push(format!("cvta.to.global.u64 %{name}, %{name};"));
            }
        }
        code.extend(self.before.iter().cloned());
        code.extend(lines(
            "mov.u32 %block, %ctaid.x;
             mov.u32 %threads, %ntid.x;
             mov.u32 %thread, %tid.x;
             mul.lo.u32 %block, %block, %threads;
             add.u32 %thread, %block, %thread;
             cvt.u64.u32 %at, %thread;
             mov.u32 %blocks, %nctaid.x;
             mul.lo.u32 %threads, %blocks, %threads;
             cvt.u64.u32 %stride, %threads;
             NEXT:",
        ));
        let count = if self.parameters.iter().any(|(_, name)| *name == "outputs") { "outputs" } else { LEN };
        code.push(format!("setp.ge.u64 %end, %at, %{count};"));
        code.push("@%end bra DONE;".into());
        code.extend(self.body.iter().cloned());
        code.extend(lines("add.u64 %at, %at, %stride;\nbra NEXT;\nDONE:\nret;"));

        let _infallible = writeln!(out, "\n.visible .entry {}({})\n{{", self.name, parameters.join(", "));
        for declaration in self.registers(&code) {
            let _infallible = writeln!(out, "    {declaration}");
        }
        out.push('\n');
        for line in &code {
            let indent = if line.ends_with(':') { "" } else { "    " };
            let _infallible = writeln!(out, "{indent}{line}");
        }
        out.push_str("}\n");
    }

    /// Returns the declarations of the registers that the code uses.
    fn registers(&self, code: &[String]) -> Vec<String> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
        let after = code.iter().flat_map(|line| line.split('%').skip(1));
        let names = after.map(|text| text.split(|letter| !is_part(letter)).next().unwrap_or_default());
        let used: BTreeSet<&str> = names.filter(|name| !name.ends_with(".x")).collect();
        let of_kind = |(kind, known): &(&str, &[&str])| {
            let is_known = |name: &&&str| {
                let parameter = self.parameters.iter().find(|(_, parameter)| parameter == *name);
                let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
                parameter.map_or_else(|| known.contains(&stem), |(of, _)| format!(".{of}") == *kind)
            };
            let list: Vec<String> = used.iter().filter(is_known).map(|name| format!("%{name}")).collect();
            (!list.is_empty()).then(|| format!(".reg {kind} {};", list.join(", ")))
        };
        REGISTERS.iter().filter_map(of_kind).collect()
    }
}
