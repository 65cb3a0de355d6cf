//! The owner of a directory, and the users that may write into it: owners and access control lists.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::{ERROR_SUCCESS, GENERIC_ALL, GENERIC_WRITE, HANDLE, LocalFree};
use windows_sys::Win32::Security as security;
use windows_sys::Win32::Security::Authorization::{
    ConvertSidToStringSidW, ConvertStringSecurityDescriptorToSecurityDescriptorW, GetSecurityInfo, SDDL_REVISION_1,
    SE_FILE_OBJECT,
};
use windows_sys::Win32::Storage::FileSystem as fs;
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

use super::check;
use super::facts::{facts, open_as};
use super::files::wide;
use crate::os::PrivateDirectoryError;

/// Rights with which a user could put files into a directory, remove them, turn the directory into a link to another
/// one, or gain such a right.
const WRITING: u32 = fs::FILE_ADD_FILE
    | fs::FILE_ADD_SUBDIRECTORY
    | fs::FILE_DELETE_CHILD
    | fs::FILE_WRITE_ATTRIBUTES
    | fs::FILE_WRITE_EA
    | fs::DELETE
    | fs::WRITE_DAC
    | fs::WRITE_OWNER
    | GENERIC_WRITE
    | GENERIC_ALL;

/// Kinds of entries in an access control list (winnt.h) that allow. The others deny, audit or label.
const ALLOWED: u8 = 0;
const ALLOWED_CALLBACK: u8 = 9;
const ALLOWED_KINDS: [u8; 5] = [ALLOWED, 4, 5, ALLOWED_CALLBACK, 11];

/// Identifiers that mean the owner of a file, whichever user that is.
const OWNERS: [security::WELL_KNOWN_SID_TYPE; 2] = [security::WinCreatorOwnerSid, security::WinCreatorOwnerRightsSid];

/// Returns the part of a name that tells this user's directory in a temporary directory from other users': the security
/// identifier.
pub(crate) fn user_tag() -> String {
    // A user without an identifier owns no directory either, and is refused there.
    this_user().and_then(|user| user.text()).unwrap_or_else(|_| "unknown-user".to_owned())
}

/// Makes `path` a directory that only this user, the system and administrators can write into, or returns why the
/// existing file is not one.
pub(crate) fn private_directory(path: &Path) -> Result<(), PrivateDirectoryError> {
    let user = this_user()?;
    create_directory(path, &user)?;
    let flags = fs::FILE_FLAG_BACKUP_SEMANTICS | fs::FILE_FLAG_OPEN_REPARSE_POINT;
    let directory = open_as(path, fs::READ_CONTROL | fs::FILE_READ_ATTRIBUTES, flags)?;
    let facts = facts(&directory)?;
    let refuse = |reason| Err(PrivateDirectoryError::Unsafe { reason, owner: facts.owner, mode: facts.mode });
    match facts.other {
        Some("a directory") => {}
        Some(_) => return refuse("it is a link or another reparse point, which its creator could point elsewhere"),
        None => return refuse("it is not a directory"),
    }
    let rights = Rights::of(&directory)?;
    // Administrators own what an elevated process of this user makes, and they have every right anyway.
    if rights.owner.is_null() || !is_trusted(rights.owner, &user) {
        return refuse("it belongs to another user");
    }
    if rights.others_can_write(&user)? {
        return refuse("other users can write into it");
    }
    Ok(())
}

/// Makes a directory with rights for the user, the system and administrators, and inherits none from its parent.
fn create_directory(path: &Path, user: &Sid) -> io::Result<()> {
    // D: the access control list; P: inherits nothing; OICI: files and directories inside inherit the entry; FA: all
    // rights.
    let text = format!("D:P(A;OICI;FA;;;{})(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)", user.text()?);
    let text: Vec<u16> = text.encode_utf16().chain([0]).collect();
    let mut descriptor = Local(null_mut());
    let at = &raw mut descriptor.0;
    // SAFETY: the text ends with NUL, and the pointer to the allocated memory is written to `descriptor`.
    check(unsafe {
        ConvertStringSecurityDescriptorToSecurityDescriptorW(text.as_ptr(), SDDL_REVISION_1, at, null_mut())
    })?;
    let attributes = security::SECURITY_ATTRIBUTES {
        nLength: u32::try_from(size_of::<security::SECURITY_ATTRIBUTES>()).unwrap_or(0),
        lpSecurityDescriptor: descriptor.0,
        bInheritHandle: 0,
    };
    let path = wide(path)?;
    // SAFETY: the name ends with NUL; `attributes` and the descriptor it points to live until after the call.
    match check(unsafe { fs::CreateDirectoryW(path.as_ptr(), &raw const attributes) }) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Memory that the system allocated for this process.
#[derive(Debug)]
struct Local(*mut c_void);

impl Drop for Local {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a function that says to free it so, or is null, which is nothing to free.
        unsafe { LocalFree(self.0) };
    }
}

/// The security identifier of this process's user.
#[derive(Debug)]
struct Sid {
    /// A `TOKEN_USER`, which points to the identifier behind it.
    token_user: Vec<u64>,
}

fn this_user() -> io::Result<Sid> {
    let mut token: HANDLE = null_mut();
    // SAFETY: the pseudo handle of this process is always valid.
    let process = unsafe { GetCurrentProcess() };
    // SAFETY: `token` may be written.
    check(unsafe { OpenProcessToken(process, security::TOKEN_QUERY, &raw mut token) })?;
    // SAFETY: the handle was made by the call above, and no other value owns it.
    let owned = unsafe { OwnedHandle::from_raw_handle(token) };
    let mut token_user =
        vec![0u64; (size_of::<security::TOKEN_USER>() + security::SECURITY_MAX_SID_SIZE as usize) / 8 + 1];
    let (size, mut needed) = (u32::try_from(token_user.len() * 8).unwrap_or(0), 0);
    let (token, at) = (owned.as_raw_handle(), token_user.as_mut_ptr().cast());
    // SAFETY: the buffer has `size` bytes, aligned for a pointer, and may be written.
    check(unsafe { security::GetTokenInformation(token, security::TokenUser, at, size, &raw mut needed) })?;
    Ok(Sid { token_user })
}

impl Sid {
    fn pointer(&self) -> security::PSID {
        // SAFETY: `this_user` filled the buffer, which is large enough and aligned, with a `TOKEN_USER`.
        let token_user = unsafe { &*self.token_user.as_ptr().cast::<security::TOKEN_USER>() };
        token_user.User.Sid
    }

    /// Returns the identifier in its usual form: "S-1-5-21-..".
    fn text(&self) -> io::Result<String> {
        let mut text = null_mut();
        // SAFETY: the identifier is valid as long as `self`; the pointer to the allocated memory is written to `text`.
        check(unsafe { ConvertSidToStringSidW(self.pointer(), &raw mut text) })?;
        let _guard = Local(text.cast());
        // SAFETY: the text ends with NUL, and nothing behind that is read.
        let units = (0..).map(|at| unsafe { text.wrapping_add(at).read() }).take_while(|unit| *unit != 0);
        Ok(String::from_utf16_lossy(&units.collect::<Vec<_>>()))
    }
}

/// Owner and access control list of a file or directory.
#[derive(Debug)]
struct Rights {
    owner: security::PSID,
    list: *mut security::ACL,
    /// The memory into which the other two point.
    _descriptor: Local,
}

impl Rights {
    fn of(file: &File) -> io::Result<Self> {
        let (mut owner, mut list) = (null_mut(), null_mut());
        let mut descriptor = Local(null_mut());
        let wanted = security::OWNER_SECURITY_INFORMATION | security::DACL_SECURITY_INFORMATION;
        let (file, kind, no_group, no_audit) = (file.as_raw_handle(), SE_FILE_OBJECT, null_mut(), null_mut());
        let (to_owner, to_list, to_descriptor) = (&raw mut owner, &raw mut list, &raw mut descriptor.0);
        // SAFETY: the handle is open with READ_CONTROL; the three pointers may be written.
        match unsafe { GetSecurityInfo(file, kind, wanted, to_owner, no_group, to_list, no_audit, to_descriptor) } {
            ERROR_SUCCESS => Ok(Self { owner, list, _descriptor: descriptor }),
            code => Err(io::Error::from_raw_os_error(i32::try_from(code).unwrap_or(i32::MAX))),
        }
    }

    fn others_can_write(&self, user: &Sid) -> io::Result<bool> {
        if self.list.is_null() {
            return Ok(true); // without a list every user has all rights
        }
        // SAFETY: the list is valid as long as `self`.
        let entries = unsafe { (*self.list).AceCount };
        for index in 0..entries.into() {
            let mut entry = null_mut();
            // SAFETY: the list is valid, and `entry` may be written.
            check(unsafe { security::GetAce(self.list, index, &raw mut entry) })?;
            // SAFETY: every entry begins with a header.
            let kind = unsafe { (*entry.cast::<security::ACE_HEADER>()).AceType };
            if !ALLOWED_KINDS.contains(&kind) {
                continue;
            }
            if kind != ALLOWED && kind != ALLOWED_CALLBACK {
                return Ok(true); // for directory services; the meaning for files is not documented
            }
            let allowed = entry.cast::<security::ACCESS_ALLOWED_ACE>();
            // SAFETY: entries of these two kinds have a mask there.
            let mask = unsafe { (*allowed).Mask };
            // SAFETY: as above, and the identifier begins here, inside the entry.
            let who = unsafe { &raw mut (*allowed).SidStart }.cast();
            if mask & WRITING != 0 && !is_trusted(who, user) && !is_any_of(who, &OWNERS) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_trusted(who: security::PSID, user: &Sid) -> bool {
    // SAFETY: both point to identifiers that the system returned, in memory that is borrowed from their owners.
    let is_user = unsafe { security::EqualSid(who, user.pointer()) != 0 };
    is_user || is_any_of(who, &[security::WinLocalSystemSid, security::WinBuiltinAdministratorsSid])
}

fn is_any_of(who: security::PSID, known: &[security::WELL_KNOWN_SID_TYPE]) -> bool {
    // SAFETY: the pointer leads to an identifier that the system returned, in memory that is borrowed from its owner.
    known.iter().any(|which| unsafe { security::IsWellKnownSid(who, *which) != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(result: Result<(), PrivateDirectoryError>) -> &'static str {
        match result {
            Err(PrivateDirectoryError::Unsafe { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn directory_is_made_once_and_found_again() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let path = parent.path().join("private");
        private_directory(&path).expect("made");
        private_directory(&path).expect("found");
        assert!(user_tag().starts_with("S-1-"));
    }

    #[test]
    fn file_is_refused_as_a_directory() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let path = parent.path().join("file");
        std::fs::write(&path, b"").expect("a file");
        assert_eq!(reason(private_directory(&path)), "it is not a directory");
    }
}
