//! Users that paint one buffer together, and the files that a process takes for theirs.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::os::{self, Facts};
use crate::segment::{DraftSegment, Home};

/// The users that may own the files of a renderbuffer, and that can join one that this process begins.
///
/// Joining a buffer is trusting the owner of its files: that user reads what is painted, may change it, and may shorten the files, which
/// kills every process that has them mapped (SIGBUS). So files of other users are refused unless they were chosen here
/// ([`ForeignOwner`](Error::ForeignOwner)), and files that every user may write to are refused in any case, unless
/// [`permissions`](super::RenderOptions::permissions) make such files too.
///
/// Users and groups have numbers on Unix only. Elsewhere owners are not known, and every file that can be opened is taken.
///
/// Written as text it is `me`, `users:1000,1001` or `group:100`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SharedWith {
    /// Files of this user only. Files that root makes for this user (sudo, NFS) are not among them.
    #[default]
    OnlyMe,
    /// Files of this user and of the users with these numbers. For root, or where access control lists let them open one another's
    /// files; a new buffer gets the usual permissions.
    Users(Vec<u32>),
    /// Files of this user, and those of the group with this number. A new buffer gets this group and the mode 0660, whatever the umask.
    ///
    /// In a directory with the sticky bit, such as /dev/shm, only the owner of the files gives the finished array its name; what other
    /// members of the group [finish](super::RenderBuffer::finish) waits for that.
    Group(u32),
}

impl fmt::Display for SharedWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyMe => f.write_str("me"),
            Self::Users(users) => {
                write!(f, "users:{}", users.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            }
            Self::Group(group) => write!(f, "group:{group}"),
        }
    }
}

impl FromStr for SharedWith {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let users = |list: &str| list.split(',').map(str::parse).collect::<Result<_, _>>();
        let parsed = match text.split_once(':') {
            None => (text == "me").then_some(Self::OnlyMe),
            Some(("users", list)) => users(list).ok().map(Self::Users),
            Some(("group", group)) => group.parse().ok().map(Self::Group),
            Some(_) => None,
        };
        let expected = "me, users:UID,UID,.. or group:GID, with numbers as `id` prints them";
        parsed.ok_or_else(|| Error::InvalidSetting {
            setting: "the users to share with",
            value: text.to_owned(),
            expected,
        })
    }
}

impl SharedWith {
    /// Refuses a file that belongs to a user that was not chosen, or that every user could shorten. `facts` are those of the very
    /// descriptor that is used.
    pub(super) fn admit(&self, facts: &Facts, home: &Home, permissions: u32) -> Result<()> {
        const WORLD_WRITE: u32 = 0o002;
        let Facts { owner, group, mode, .. } = *facts;
        let location = || home.location.to_string();
        let is_chosen = match self {
            Self::OnlyMe => false,
            Self::Users(users) => users.contains(&owner),
            Self::Group(chosen) => group == *chosen && is_proof(group, home)?,
        };
        if !is_chosen && !os::is_surely_user(owner) {
            let reason = if os::is_user(owner) {
                "in this user namespace that number stands for every user that has none; choose it with \
                 RenderOptions::shared_with or --share users:UID to trust them all"
            } else {
                "that user could read what is painted, and shorten the file under this process; trust the user with \
                 RenderOptions::shared_with, --share users:UID or --share group:GID, or discard the buffer as that user"
            };
            return Err(Error::ForeignOwner { location: location(), owner, user: os::user_id(), reason });
        }
        if mode & WORLD_WRITE & !permissions != 0 {
            let reason = "every user may write to it, and so shorten it under this process (chmod o-w, or discard it)";
            return Err(Error::PermissionDenied { location: location(), owner, mode, reason });
        }
        Ok(())
    }

    /// Lets the chosen users open what this process has made and that has no name yet.
    pub(super) fn open_to(&self, draft: &DraftSegment, home: &Home, permissions: u32) -> Result<()> {
        let failed = |error| Error::os("give the group its file", &home.location, error);
        let file = draft.file().file();
        let shared = match self {
            Self::Group(group) => os::share_with_group(file, *group),
            Self::OnlyMe | Self::Users(_) => Ok(()),
        };
        let facts = os::facts(file).map_err(failed)?;
        shared.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => Error::PermissionDenied {
                location: home.location.to_string(),
                owner: facts.owner,
                mode: facts.mode,
                reason: "this user is not in the group that is to share it",
            },
            _ => failed(error),
        })?;
        // On NFS the server may have made it another user's.
        self.admit(&facts, home, permissions)
    }
}

/// Whether the group of a file says that a member made it: in a directory that hands its own group on, anyone may have.
fn is_proof(group: u32, home: &Home) -> Result<bool> {
    let directory = home.backend.path().join("."); // behind a link too
    let facts = os::facts_at(&directory).map_err(|error| Error::os("look at", directory.display(), error))?;
    Ok(group != facts.group || facts.mode & 0o002 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_which_users() {
        for with in [SharedWith::OnlyMe, SharedWith::Users(vec![1, 4_000_000_000]), SharedWith::Group(0)] {
            assert_eq!(with.to_string().parse::<SharedWith>().expect("as written"), with);
        }
        for text in ["", "all", "users:", "users:root", "users:1,", "group:-1", "group:1,2", "group:4294967296"] {
            assert!(matches!(text.parse::<SharedWith>(), Err(Error::InvalidSetting { .. })), "{text:?}");
        }
    }
}
