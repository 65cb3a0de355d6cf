//! The groups of a user, as the machine's user data have them: files, or a directory service. No system call returns
//! them.

use std::ffi::{c_char, c_int};
use std::io;
use std::mem::MaybeUninit;

/// Room for the texts of one user's record at first, and at most.
const RECORD: usize = 1 << 10;
const LONGEST_RECORD: usize = 1 << 20;

/// Room for a user's groups at first, and at most (`NGROUPS_MAX` of Linux).
const GROUPS: usize = 1 << 6;
const MOST_GROUPS: usize = 1 << 16;

/// Returns whether a user is a member of a group, its primary group included. `None`: the user data do not know the
/// user.
///
/// This may ask a server, and take as long as that takes.
///
/// See <https://man7.org/linux/man-pages/man3/getpwnam_r.3p.html> and
/// <https://man7.org/linux/man-pages/man3/getgrouplist.3.html>.
#[allow(unsafe_code)]
pub(crate) fn is_listed_member(user: u32, group: u32) -> io::Result<Option<bool>> {
    let mut texts: Vec<c_char> = vec![0; RECORD];
    loop {
        let mut record = MaybeUninit::<libc::passwd>::uninit();
        let mut found = std::ptr::null_mut();
        let (to, length) = (texts.as_mut_ptr(), texts.len());
        // SAFETY: the function writes one record, at most `length` bytes of texts, and where the record is. All three
        // may be written.
        match unsafe { libc::getpwuid_r(user, record.as_mut_ptr(), to, length, &raw mut found) } {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: a user was found, so the record is complete. Its name points into `texts`, which is not
                // changed any more.
                let record = unsafe { record.assume_init_ref() };
                return groups_contain(record, group).map(Some);
            }
            libc::EINTR => {}
            libc::ERANGE if length < LONGEST_RECORD => texts.resize(2 * length, 0),
            // Systems differ in how they report that there is no such user.
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Returns whether the groups of the user with this record contain `group`.
#[allow(unsafe_code)]
#[allow(clippy::unnecessary_cast, clippy::cast_possible_wrap, clippy::cast_sign_loss)] // `int` on Apple systems, unsigned elsewhere
fn groups_contain(record: &libc::passwd, group: u32) -> io::Result<bool> {
    let mut groups = vec![0; GROUPS];
    loop {
        let (primary, to) = (record.pw_gid as _, groups.as_mut_ptr());
        let mut count = c_int::try_from(groups.len()).unwrap_or(0);
        // SAFETY: the name ends with NUL and lives as long as the record's texts; `count` says how many groups may be
        // written.
        let done = unsafe { libc::getgrouplist(record.pw_name, primary, to, &raw mut count) };
        if done >= 0 {
            let count = usize::try_from(count).unwrap_or(0);
            return Ok(groups.iter().take(count).any(|listed| *listed as u32 == group));
        }
        if groups.len() >= MOST_GROUPS {
            return Err(io::Error::other("a user has too many groups"));
        }
        groups.resize(2 * groups.len(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_in_its_primary_group_and_unknown_users_are_reported() {
        assert_eq!(is_listed_member(0, 0).expect("an answer"), Some(true));
        assert_eq!(is_listed_member(0, 4_000_000_001).expect("an answer"), Some(false));
        assert_eq!(is_listed_member(4_000_000_001, 0).expect("an answer"), None);
    }
}
