//! The entry points of the children of these tests.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ndarray_shm::default_directory;
use ndarray_shm::process::{self, Context, EntryPoint};

#[cfg(target_os = "linux")]
use super::leftovers::{leave_nothing, look_around};
use crate::support::eventually;

/// The entry points, by name.
pub const ENTRIES: &[(&str, EntryPoint)] = &[
    ("succeed", |_| Ok(())),
    ("note", note),
    ("wait", wait),
    ("fail", fail),
    ("fail-if-last", fail_if_last),
    ("fail-if-first", fail_if_first),
    ("succeed-if-last", succeed_if_last),
    ("take-turns", take_turns),
    ("fail-at-length", |_| Err("at length ".repeat(1 << 16).into())),
    ("panic", |context| panic!("the brush of {} broke", context.index())),
    ("survive", survive),
    ("exit-3", |_| std::process::exit(3)),
    ("abort", |_| std::process::abort()),
    ("spawn", spawn_others),
    ("say-backend", say_backend),
    #[cfg(unix)]
    ("paint", super::painting::paint),
    #[cfg(target_os = "linux")]
    ("look-around", look_around),
    #[cfg(target_os = "linux")]
    ("leave-nothing", leave_nothing),
];

pub type Outcome = Result<(), Box<dyn Error>>;

/// Returns the test's directory, which is the first argument of every entry.
pub fn directory(context: &Context) -> &Path {
    Path::new(&context.arguments()[0])
}

/// Reports that this child has arrived, in a file that contains its process number.
pub fn arrive(context: &Context) -> std::io::Result<()> {
    let name = |stage| directory(context).join(format!("{stage}-{}", context.index()));
    fs::write(name("coming"), std::process::id().to_string())?;
    // The rename publishes a complete file: a process that sees the name can read the number.
    fs::rename(name("coming"), name("here"))
}

/// Waits until the test says go, or is over.
pub fn wait(context: &Context) -> Outcome {
    arrive(context)?;
    let directory = directory(context);
    while directory.exists() && !directory.join("go").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn note(context: &Context) -> Outcome {
    let words = format!("{} of {}: {:?}", context.index(), context.count(), &context.arguments()[1..]);
    Ok(fs::write(directory(context).join(context.index().to_string()), words)?)
}

#[derive(Debug, thiserror::Error)]
#[error("chunk {0} cannot be painted")]
struct Unpaintable(usize, #[source] std::io::Error);

fn fail(context: &Context) -> Outcome {
    Err(Unpaintable(context.index(), std::io::Error::other("the colour ran out")).into())
}

/// The last child fails when all others have arrived. The others wait.
fn fail_if_last(context: &Context) -> Outcome {
    if context.index() + 1 < context.count() {
        return wait(context);
    }
    let others = 0..context.index();
    eventually("the other children arrive", || {
        others.clone().all(|index| directory(context).join(format!("here-{index}")).exists())
    });
    fail(context)
}

/// The first child fails when it is told to. The others succeed at once.
fn fail_if_first(context: &Context) -> Outcome {
    if context.index() == 0 { wait(context).and_then(|()| fail(context)) } else { Ok(()) }
}

/// Ends when its index is told to go. Child 0 fails.
fn take_turns(context: &Context) -> Outcome {
    arrive(context)?;
    let (directory, go) = (directory(context), directory(context).join(format!("go-{}", context.index())));
    while directory.exists() && !go.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    if context.index() == 0 { fail(context) } else { Ok(()) }
}

/// Panics, catches the panic, and exits with another code.
fn survive(_: &Context) -> Outcome {
    let survived = std::panic::catch_unwind(|| panic!("forgiven"));
    assert!(survived.is_err());
    std::process::exit(4);
}

/// The last child succeeds at once. The others wait.
fn succeed_if_last(context: &Context) -> Outcome {
    if context.index() + 1 < context.count() { wait(context) } else { Ok(()) }
}

/// Writes its default backend, and the variable that chooses it, to a file.
fn say_backend(context: &Context) -> Outcome {
    let words = format!("{} {:?}", default_directory()?.name(), std::env::var("EMULATE_SHM"));
    Ok(fs::write(directory(context).join(format!("backend-{}", context.index())), words)?)
}

/// Spawns two children that wait and one that does not, and joins them.
fn spawn_others(context: &Context) -> Outcome {
    let inner = directory(context).join("inner");
    fs::create_dir(&inner)?;
    Ok(process::spawn(3, "succeed-if-last", &[inner.to_str().unwrap()])?.join()?)
}
