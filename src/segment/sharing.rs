//! `SharedWith`: users that share a renderbuffer or a cache. Checks the owners of its files.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use super::{DraftSegment, Home};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts};

/// The users that may share a [renderbuffer](crate::render) or a [cache](crate::cache) with this process.
///
/// Using it requires trust in the owner of its files. That user can read and change what is in them, and can
/// shorten them, which kills every process that maps them (SIGBUS). So files of other users are refused with
/// [`ForeignOwner`](ErrorKind::ForeignOwner), unless those users are chosen here. Files that every user may write to
/// are refused too, unless [`permissions`](crate::render::RenderOptions::permissions) create such files.
///
/// Users and groups have numbers on Unix only. On other platforms the owner is not known, and every file that can be
/// opened is accepted.
///
/// As text, the values are `me`, `users:1000,1001` and `group:100`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SharedWith {
    /// Only this user's files. Files that belong to root (sudo, NFS) are not among them.
    #[default]
    OnlyMe,
    /// Files of this user and of the users with these numbers. A new file gets the usual permissions, so this is of
    /// use for root, or where access control lists let the users open one another's files.
    Users(Vec<u32>),
    /// Files of this user, and files of members of the group with this number that have this group. A new file gets
    /// this group and the mode 0660, whatever the umask.
    ///
    /// The owner of a file must be a member according to the user data of this machine (`getent passwd`,
    /// `getent group`, or what a directory service says), because a file can have a group of which its owner is no
    /// member. Where these data do not know the owner, as in many containers, name it with [`Users`](Self::Users).
    ///
    /// In a directory with the sticky bit, such as /dev/shm, only the owner of the files can remove a cache, or give a
    /// finished array its name. If another member of the group calls [`finish`](crate::RenderBuffer::finish), it waits
    /// for the owner to do so. If the owner dies there between two steps, the ledger that stays keeps other members
    /// from beginning a buffer of this name until the owner or root discards it.
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
        parsed.ok_or_else(|| Error::setting("the users to share with", text, expected))
    }
}

impl SharedWith {
    /// Refuses a file of a user that was not chosen, and a file that every user could shorten.
    ///
    /// `facts` must come from the descriptor that is going to be mapped. Facts found by name could be those of another
    /// file. `member` is the owner that was found to be a member of the chosen group last: a server may have to be
    /// asked, so each owner is looked up once.
    pub(crate) fn admit(&self, facts: &Facts, home: &Home, permissions: u32, member: &Cell<Option<u32>>) -> Result<()> {
        const WORLD_WRITE: u32 = 0o002;
        let Facts { owner, group, mode, .. } = *facts;
        let location = || home.location.to_string();
        let refused = match self {
            _ if os::is_surely_user(owner) => None,
            Self::Users(users) if users.contains(&owner) => None,
            // A group is no proof by itself. A directory with the set-group-ID bit passes its group on to the files of
            // every user that may create one there, and the files keep it when they are renamed.
            Self::Group(chosen) if group == *chosen && member.get() == Some(owner) => None,
            Self::Group(chosen) if group == *chosen => {
                let found = os::is_member(owner, group);
                match found.map_err(|error| Error::os("look up the groups of the owner of", &home.location, error))? {
                    Some(true) => {
                        member.set(Some(owner));
                        None
                    }
                    Some(false) => Some(
                        "it has the chosen group, but that user is not a member of it, and could read and change what is in \
                         it, and shorten the file while it is mapped; add the user to the group, or trust the user \
                         (SharedWith::Users, --share users:UID, in Python share=\"users:UID\")",
                    ),
                    None => Some(
                        "it has the chosen group, but the user data of this machine (getent passwd) do not know that user, so it is \
                         not known to be a member; trust the user (SharedWith::Users, --share users:UID, in Python share=\"users:UID\")",
                    ),
                }
            }
            _ if os::is_user(owner) => Some(
                "in this user namespace that number stands for all users without a number; choose it \
                 (SharedWith::Users, --share users:UID, in Python share=\"users:UID\") to trust all of them",
            ),
            _ => Some(
                "that user could read and change what is in it, and shorten the file while it is mapped; trust the user or a group \
                 (SharedWith, --share users:UID or group:GID, in Python share=\"users:UID\" or \"group:GID\"), or remove it as \
                 that user",
            ),
        };
        if let Some(reason) = refused {
            return Err(ErrorKind::ForeignOwner { owner, user: os::user_id(), reason }.at(location()));
        }
        if mode & WORLD_WRITE & !permissions != 0 {
            let reason = "every user may write to it, and so shorten it while it is mapped (chmod o-w, or discard it)";
            return Err(ErrorKind::PermissionDenied { owner, mode, reason }.at(location()));
        }
        Ok(())
    }

    /// Gives a draft of this process the chosen group, before it has its name, and checks its owner.
    pub(crate) fn open_to(&self, draft: &DraftSegment, home: &Home, permissions: u32) -> Result<()> {
        let failed = |error| Error::os("change the group of", &home.location, error);
        let file = draft.file().file();
        let shared = match self {
            Self::Group(group) => os::share_with_group(file, *group),
            Self::OnlyMe | Self::Users(_) => Ok(()),
        };
        let facts = os::facts(file).map_err(failed)?;
        shared.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied {
                owner: facts.owner,
                mode: facts.mode,
                reason: "this user is not in the group that is to share it",
            }
            .at(&home.location),
            _ => failed(error),
        })?;
        // On NFS the server may have given the file to another user.
        self.admit(&facts, home, permissions, &Cell::new(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_parsed_as_they_are_formatted() {
        for with in [SharedWith::OnlyMe, SharedWith::Users(vec![1, 4_000_000_000]), SharedWith::Group(0)] {
            assert_eq!(with.to_string().parse::<SharedWith>().expect("as written"), with);
        }
        for text in ["", "all", "users:", "users:root", "users:1,", "group:-1", "group:1,2", "group:4294967296"] {
            assert!(
                matches!(text.parse::<SharedWith>(), Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })),
                "{text:?}"
            );
        }
    }
}
