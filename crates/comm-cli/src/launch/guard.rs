//! A process that kills the ranks' process groups if the launcher dies.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The script of the guard. It reads lines `+ GROUP` and `- GROUP`. If its input ends without
/// `quit`, the launcher has died, and it kills all groups.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
groups=' '
while read -r verb group; do
    case $verb in
        +) groups="$groups$group " ;;
        -) groups="${groups%% $group *} ${groups#* $group }" ;;
        quit) exit 0 ;;
    esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
"#;

/// Kills the registered process groups if this process dies without dropping the guard.
///
/// The kernel kills the ranks themselves, but not their children. Processes that have left their
/// group, or that start while the launcher dies, are not killed.
#[derive(Debug)]
pub(super) struct Guard {
    /// `None` if there is no `sh`.
    process: Option<Child>,
}

impl Guard {
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C signals the launcher's process group, which must not include the guard.
        command.process_group(0);
        match command.spawn() {
            Ok(process) => Ok(Self { process: Some(process) }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self { process: None }),
            Err(error) => Err(error),
        }
    }

    /// Registers a process group by the process id of its leader.
    pub(super) fn watch(&mut self, group: u32) {
        self.send(format_args!("+ {group}"));
    }

    /// Unregisters a process group, before its id can be reused.
    pub(super) fn forget(&mut self, group: u32) {
        self.send(format_args!("- {group}"));
    }

    fn send(&mut self, message: impl Display) {
        let input = self.process.as_mut().and_then(|process| process.stdin.as_mut());
        // Each line is a single write. If the guard was killed, the error is ignored, and the ranks
        // keep running.
        drop(input.map(|input| input.write_all(format!("{message}\n").as_bytes())));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.send("quit");
        // `wait` closes the input first.
        drop(self.process.as_mut().map(Child::wait));
    }
}
