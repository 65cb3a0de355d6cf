//! A child that holds counted arrays and obeys requests, one per line.

use std::time::Duration;

use ndarray::IxDyn;
use ndarray_shm::counted::{Handle, HandleOptions};
use ndarray_shm::{Access, ArrayReader, CreateOptions, CreationMode, Error, OpenOptions, RefcountedArray, Result};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, Place, backend_of_child};

pub const ROLES: &[(&str, Role)] = &[("holder", holder)];

/// The parent's side of such a child.
#[derive(Debug)]
pub struct Holder(pub Child);

impl Holder {
    /// Starts a child for arrays of `u32` under this name.
    pub fn start(place: &Place, name: &Name) -> Self {
        Self(Child::start(place, "holder", &[name.as_str()]))
    }

    /// Starts a child and makes a first request, which must succeed.
    pub fn with(place: &Place, name: &Name, first: &str) -> Self {
        let mut holder = Self::start(place, name);
        assert_eq!(holder.ask(first), "ok", "{first}");
        holder
    }

    /// Makes a request and returns the answer: a value, `ok`, or the error's variant.
    pub fn ask(&mut self, request: &str) -> String {
        self.0.ask(request)
    }
}

/// The name of an error's variant.
pub fn variant(error: &Error) -> String {
    format!("{error:?}").split([' ', ':', '{', '(']).next().unwrap_or_default().to_owned()
}

enum Held {
    Array(RefcountedArray<u32, IxDyn>),
    Reader(ArrayReader<u32, IxDyn>),
}

fn options() -> CreateOptions {
    CreateOptions::new().directory(backend_of_child())
}

fn open_options() -> OpenOptions {
    OpenOptions::new().directory(backend_of_child())
}

/// Keeps a stack of arrays. Requests are about the topmost.
fn holder(arguments: &[String]) {
    let name = arguments[0].as_str();
    let mut stack: Vec<Held> = Vec::new();
    loop {
        let line = hear();
        let words: Vec<&str> = line.split(' ').collect();
        match obey(name, &words, &mut stack) {
            Ok(answer) => say(answer),
            Err(error) => say(variant(&error)),
        }
    }
}

fn obey(name: &str, words: &[&str], stack: &mut Vec<Held>) -> Result<String> {
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let handle = |text: &str| text.parse::<Handle>();
    let mut push = |held: Held| {
        stack.push(held);
        Ok("ok".to_owned())
    };
    match words {
        ["create", length] => return push(Held::Array(options().create_counted(name, IxDyn(&[number(length)]))?)),
        ["replace", length] => {
            let options = options().mode(CreationMode::Replace);
            return push(Held::Array(options.create_counted(name, IxDyn(&[number(length)]))?));
        }
        ["open"] => return push(Held::Array(open_options().open_counted(name)?)),
        ["readonly"] => return push(Held::Array(open_options().access(Access::Read).open_counted(name)?)),
        ["reader"] => {
            return push(Held::Reader(OpenOptions::new().directory(backend_of_child()).open_counted_reader(name)?));
        }
        // By the directory that the handle names.
        ["attach", text] => return push(Held::Array(handle(text)?.attach()?)),
        ["take-back", text] => return Ok(handle(text)?.revoke()?.to_string()),
        ["drop"] => {
            drop(stack.pop());
            return Ok("ok".into());
        }
        ["exit"] => std::process::exit(0),
        _ => {}
    }
    let array = match stack.last() {
        Some(Held::Array(array)) => array,
        Some(Held::Reader(reader)) if words == ["sum"] => return Ok(reader.view().sum().to_string()),
        _ => panic!("{words:?} needs an array"),
    };
    Ok(match words {
        ["close"] => {
            let Some(Held::Array(array)) = stack.pop() else { unreachable!("checked above") };
            array.close()?;
            "ok".into()
        }
        ["count"] => array.refcount().to_string(),
        ["sum"] => array.read()?.sum().to_string(),
        ["fill", value] => {
            array.write()?.fill(number(value) as u32);
            "ok".into()
        }
        ["try-write"] => array.try_write().map(|_| "ok".into())?,
        ["try-read"] => array.try_read().map(|_| "ok".into())?,
        ["keep"] => array.keep().map(|()| "ok".into())?,
        ["freeze"] => array.freeze().map(|()| "ok".into())?,
        ["view"] => array.view()?.sum().to_string(),
        ["is-readonly"] => array.is_readonly().to_string(),
        // Takes a write guard, says so, and writes and releases it after the parent's next line.
        ["write-on", value] => {
            let mut guard = array.write()?;
            say("writing");
            hear();
            guard.fill(number(value) as u32);
            drop(guard);
            "written".into()
        }
        ["handle", milliseconds] => {
            let grace = Duration::from_millis(number(milliseconds) as u64);
            array.handle_with(HandleOptions::new().grace(grace))?.to_string()
        }
        _ => panic!("unknown request {words:?}"),
    })
}
