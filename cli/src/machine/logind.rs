//! Whether systemd-logind removes a user's shared memory at log-out: the `RemoveIPC` setting and lingering.
//!
//! See `logind.conf(5)`: first the first `systemd/logind.conf` found is read, then the drop-ins of every
//! `systemd/logind.conf.d`, sorted by file name. A drop-in hides those of the same name in later directories. The last
//! assignment wins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::host::MAY_HAVE_SYSTEMD;

/// Directories with configuration, by descending priority.
const ROOTS: [&str; 4] = ["/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd"];

/// Whether systemd runs this machine, checked as in `sd_booted(3)`. Without systemd, log-out removes no names.
pub(crate) fn is_running() -> bool {
    MAY_HAVE_SYSTEMD && Path::new("/run/systemd/system").is_dir()
}

/// Whether a user lingers, as `loginctl enable-linger` arranges: log-out then removes nothing.
pub(crate) fn lingers(user: &str) -> bool {
    !user.is_empty() && Path::new("/var/lib/systemd/linger").join(user).exists()
}

/// Returns the configured `RemoveIPC`; `None` if it is not set (systemd's default is yes).
pub(crate) fn remove_ipc() -> Option<bool> {
    remove_ipc_in(&ROOTS.map(Path::new))
}

fn remove_ipc_in(roots: &[&Path]) -> Option<bool> {
    let main = roots.iter().map(|root| root.join("logind.conf")).find(|path| path.is_file());
    let mut drop_ins: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
    for root in roots {
        let Ok(entries) = fs::read_dir(root.join("logind.conf.d")) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "conf") {
                drop_ins.entry(entry.file_name()).or_insert(path);
            }
        }
    }
    main.into_iter()
        .chain(drop_ins.into_values())
        .filter_map(|path| setting(&fs::read_to_string(path).ok()?))
        .next_back()
}

/// Finds the last valid `RemoveIPC=` in the section `[Login]`.
fn setting(text: &str) -> Option<bool> {
    let mut in_login = false;
    let mut found = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            in_login = line == "[Login]";
        } else if let Some((key, value)) = line.split_once('=')
            && in_login
            && key.trim_end() == "RemoveIPC"
        {
            found = boolean(value.trim()).or(found);
        }
    }
    found
}

/// Reads a boolean as systemd does.
fn boolean(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "1" | "yes" | "y" | "true" | "t" | "on" => Some(true),
        "0" | "no" | "n" | "false" | "f" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_login_section_and_only_whole_keys_count() {
        assert_eq!(setting("[Login]\n#RemoveIPC=no\n"), None);
        assert_eq!(setting("[Manager]\nRemoveIPC=no\n"), None);
        assert_eq!(setting("[Login]\nRemoveIPCs=no\n"), None);
        assert_eq!(setting("[Login]\n RemoveIPC = No \n"), Some(false));
        assert_eq!(setting("[Login]\nRemoveIPC=no\nRemoveIPC=perhaps\n"), Some(false));
    }

    #[test]
    fn drop_ins_override_the_file_and_hide_later_ones() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (strong, weak) = (directory.path().join("etc"), directory.path().join("usr"));
        for root in [&strong, &weak] {
            fs::create_dir_all(root.join("logind.conf.d")).expect("made");
        }
        let roots = [strong.as_path(), weak.as_path()];
        assert_eq!(remove_ipc_in(&roots), None);

        fs::write(weak.join("logind.conf"), "[Login]\nRemoveIPC=no\n").expect("written");
        assert_eq!(remove_ipc_in(&roots), Some(false));
        fs::write(strong.join("logind.conf"), "[Login]\nRemoveIPC=yes\n").expect("written");
        assert_eq!(remove_ipc_in(&roots), Some(true));
        fs::write(weak.join("logind.conf.d/10.conf"), "[Login]\nRemoveIPC=no\n").expect("written");
        assert_eq!(remove_ipc_in(&roots), Some(false));
        fs::write(strong.join("logind.conf.d/10.conf"), "[Login]\n").expect("written");
        assert_eq!(remove_ipc_in(&roots), Some(true));
    }
}
