//! A process that outlives the launcher and kills what is left of the ranks.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// What the guard runs. It reads `+ GROUP` and `- GROUP`, a line each, and kills the groups that it
/// holds when its input ends without `quit`: the launcher, which has the other end, is dead.
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

/// Kills the process groups that it watches when this process dies without dropping it, in whatever
/// way.
///
/// The kernel kills the ranks themselves then, but not what they have started, such as a program
/// that a shell runs. A process that has left its group is not found, nor one that was started just
/// as the launcher died.
#[derive(Debug)]
pub(super) struct Guard {
    /// `None` where there is no `sh`.
    process: Option<Child>,
}

impl Guard {
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C on a terminal is for the launcher's group.
        command.process_group(0);
        match command.spawn() {
            Ok(process) => Ok(Self { process: Some(process) }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self { process: None }),
            Err(error) => Err(error),
        }
    }

    /// Adds a process group, which has the number of the process that leads it.
    pub(super) fn watch(&mut self, group: u32) {
        self.tell(format_args!("+ {group}"));
    }

    /// Forgets a group that is gone, before its number can be that of another.
    pub(super) fn forget(&mut self, group: u32) {
        self.tell(format_args!("- {group}"));
    }

    fn tell(&mut self, message: impl Display) {
        let input = self.process.as_mut().and_then(|process| process.stdin.as_mut());
        // In one piece. A guard that somebody has killed is no reason to end the ranks.
        drop(input.map(|input| input.write_all(format!("{message}\n").as_bytes())));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tell("quit");
        // Waiting closes its input first.
        drop(self.process.as_mut().map(Child::wait));
    }
}
