//! Forked children and inherited descriptors: memory is inherited, counts are not, and a channel belongs to one
//! process.

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::counted::{Channel, Socket};
use ndarray_shm::{Error, ErrorKind, NextClaim};

use super::meeting::{Meeting, Traces, all, attach, leaving_nothing, names, share, strategies};
use crate::support::Place;
use crate::support::child::{Child, ROLE, Role, hear, program, say};
use crate::support::forks::{fork_until_input_ends, in_forked_child};
use crate::support::{backend_of_child, eventually, machine::open_files};
use crate::tests;

/// The variable with the number of the descriptor that a child inherits.
const DESCRIPTOR: &str = "NDSHM_TEST_DESCRIPTOR";

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "sharing",
        "forks",
        tests![
            inherit_parent_sees_writes_of_a_forked_child,
            forked_child_must_adopt_its_parents_channel,
            a_channel_is_inherited_as_a_descriptor,
            locks_end_with_their_process_despite_its_forked_children,
            parent_keeps_its_locks_when_a_forked_child_ends,
            forked_child_claims_what_its_parent_has_not,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("fork-and-add", fork_and_add),
    ("fork-with-channel", fork_with_channel),
    ("inheritor", inheritor),
    ("lock-and-fork", lock_and_fork),
    ("claim-and-fork", claim_and_fork),
];

/// A process that forks children, which add one to arrays that they inherited.
fn fork_and_add(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        for strategy in strategies() {
            for round in 0..30_u8 {
                let array = share(backend, strategy, 0_f32);
                in_forked_child(|| {
                    *array.write().unwrap() += f32::from(round);
                    let seen = array.refcount() == 1;
                    drop(array.try_clone().unwrap());
                    seen
                });
                assert!(all(&array, f32::from(round)));
                assert_eq!(array.refcount(), 1, "the forked child was neither counted nor subtracted");
                // A forked child that ends normally runs the destructors of what it inherited.
                let mut inherited = Some(array);
                in_forked_child(|| {
                    drop(inherited.take());
                    true
                });
                let array = inherited.expect("the parent's");
                assert_eq!((array.refcount(), all(&array, f32::from(round))), (1, true));
                assert_eq!(names(backend), usize::from(array.location().is_some()), "its name stays");
            }
        }
        channel.send("done", &[]).unwrap();
    });
}

fn inherit_parent_sees_writes_of_a_forked_child(place: &Place) {
    let meeting = Meeting::new(place);
    let (child, channel) = meeting.child("fork-and-add", &[]);
    assert_eq!(channel.receive::<String>().unwrap().message, "done");
    child.finish();
    meeting.is_clean();
}

/// A process that forks a child, which tries the channel and adopts it.
fn fork_with_channel(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        let mut channel = Some(channel);
        in_forked_child(|| {
            let inherited = channel.take().expect("inherited");
            let array = share(backend, strategies().next().expect("a strategy"), 1_f32);
            let refused = inherited.send("torn", &[&array]).unwrap_err();
            let also = inherited.receive_timeout::<()>(std::time::Duration::from_secs(60)).unwrap_err();
            let adopted = inherited.adopt();
            adopted.send("adopted", &[&array]).unwrap();
            let answer = adopted.receive::<String>().unwrap().message;
            matches!(refused.kind, ErrorKind::Unsupported { .. })
                && refused.to_string().contains("forked")
                && matches!(also.kind, ErrorKind::Unsupported { .. })
                && answer == "go"
        });
        drop(channel);
    });
}

fn forked_child_must_adopt_its_parents_channel(place: &Place) {
    let meeting = Meeting::new(place);
    let (child, channel) = meeting.child("fork-with-channel", &[]);
    let received = channel.receive::<String>().unwrap();
    assert_eq!(received.message, "adopted", "and nothing before it");
    let array = attach::<f32>(received.arrays.into_iter().next().unwrap());
    channel.send("go", &[]).unwrap();
    child.finish();
    assert!(all(&array, 1.0));
    drop(array);
    // The forked child ended without dropping its own array.
    let left = usize::from(strategies().next() == Some(ndarray_shm::counted::SharingStrategy::FileSystem));
    assert_eq!(meeting.names(), left);
}

/// A child that inherits its end of a channel as a descriptor.
#[allow(unsafe_code)]
fn inheritor(_: &[String]) {
    let backend = backend_of_child();
    let _ = backend.lock_survives_close().unwrap(); // the first call probes with open files: not to be counted below
    let before = open_files();
    let number = std::env::var(DESCRIPTOR).expect("a number").parse().expect("a number");
    // SAFETY: the parent opened the descriptor for this process, and no other code uses it.
    let channel = Channel::from_socket(unsafe { OwnedFd::from_raw_fd(number) }).unwrap();
    let received = channel.receive::<f32>().unwrap();
    for array in received.arrays {
        attach::<f32>(array).write().unwrap().fill(received.message);
    }
    channel.send("filled", &[]).unwrap();
    // The channel can become a socket again, and a channel once more.
    let channel = Channel::from_socket(Socket::from(channel)).unwrap();
    assert_eq!(channel.receive::<String>().unwrap().message, "thanks");
    drop(channel);
    assert_eq!(open_files(), before - 1);
    assert_eq!(Traces::of(&backend).descriptors(), 0);
}

fn a_channel_is_inherited_as_a_descriptor(place: &Place) {
    for strategy in strategies() {
        let meeting = Meeting::new(place);
        let array = meeting.share(strategy, 0_f32);
        let (here, there) = Channel::pair().unwrap();
        // The shell moves its standard input to another number, and is replaced by the child.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" 7<&0 </dev/null"]).arg(program()).stdin(OwnedFd::from(there.into_socket()));
        command.env(ROLE, "inheritor").env(DESCRIPTOR, "7").envs(meeting.place.environment());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        drop(command); // closes this process's copy of the other end
        here.send(&6_f32, &[&array]).unwrap();
        assert_eq!(here.receive::<String>().unwrap().message, "filled");
        assert!(all(&array, 6.0));
        here.send("thanks", &[]).unwrap();
        assert!(matches!(here.receive::<()>().unwrap_err().kind, ErrorKind::Closed { .. }));
        assert!(child.wait().unwrap().success());
        drop(array);
        meeting.is_clean();
    }
}

/// A process that locks arrays and a chunk, in the ways that its argument names, and then forks a child that outlives
/// it.
fn lock_and_fork(arguments: &[String]) {
    let (place, name) = (Place::of_parent("the parent's"), arguments[1].as_str());
    let open = |keep| place.open_options().keep_fd(keep).open::<u8, Ix1>(name, 4).unwrap();
    let fork = || {
        fork_until_input_ends();
        say("locked");
        hear(); // until it is killed
    };
    match arguments[0].as_str() {
        "write" => {
            let array = open(false);
            let _guard = array.write().unwrap();
            fork();
        }
        "kept" => {
            let array = open(true);
            let _guard = array.write().unwrap();
            fork();
        }
        "read" => {
            let array = open(false);
            let _guards = [array.read().unwrap(), array.read().unwrap()];
            fork();
        }
        "claim" => {
            let buffer = place.render_options().open::<u8, Ix1>(name).unwrap();
            let NextClaim::Chunk(_claim) = buffer.claim_next().unwrap() else { panic!("it is free") };
            fork();
        }
        // The child ends first, with the destructors of what it has inherited.
        "ended" => {
            let array = open(false);
            let mut guard = Some(array.write().unwrap());
            in_forked_child(|| {
                drop(guard.take());
                true
            });
            say("locked");
            hear();
        }
        other => panic!("no lock is called {other}"),
    }
}

fn locks_end_with_their_process_despite_its_forked_children(place: &Place) {
    let name = place.location("locked");
    let array = place.options().create::<u8, Ix1>(name.location(), 4).unwrap();
    for kind in ["write", "kept", "read"] {
        let mut child = Child::start(place, "lock-and-fork", &[kind, name.as_str()]);
        child.expect("locked");
        assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock, "{kind}");
        child.kill();
        // The forked child still has its standard input, and runs.
        eventually(kind, || array.try_write().is_ok()); // it may only have begun
        assert!(place.backend.attached(name.location()).unwrap(), "{kind}: it has the mapping");
    }
    let name = place.location("claimed");
    let buffer = place.render_options().create::<u8, Ix1>(name.location(), 4, 4, "work").unwrap();
    let mut child = Child::start(place, "lock-and-fork", &["claim", name.as_str()]);
    child.expect("locked");
    assert!(matches!(buffer.claim_next().unwrap(), NextClaim::Busy));
    child.kill();
    eventually("the chunk is free", || matches!(buffer.claim_next().unwrap(), NextClaim::Chunk(_)));
    buffer.discard().unwrap();
}

fn parent_keeps_its_locks_when_a_forked_child_ends(place: &Place) {
    let name = place.location("locked");
    let array = place.options().create::<u8, Ix1>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "lock-and-fork", &["ended", name.as_str()]);
    child.expect("locked");
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
    child.kill();
    drop(array.try_write().unwrap());
}

/// A process that claims chunks, and forks a child that drops the inherited claim and paints.
fn claim_and_fork(arguments: &[String]) {
    let place = Place::of_parent("the parent's");
    let buffer = place.render_options().open::<u8, Ix1>(arguments[0].as_str()).unwrap();
    let next = || match buffer.claim_next().unwrap() {
        NextClaim::Chunk(chunk) => Some(chunk),
        NextClaim::Busy => None,
        NextClaim::AllDone => panic!("a chunk is claimed"),
    };
    let mut claim = next();
    drop(next());
    let survives = place.backend.lock_survives_close().unwrap();
    in_forked_child(|| {
        drop(claim.take());
        if !survives {
            // The inherited lease ends when the child closes its descriptor.
            return matches!(buffer.claim_next(), Err(Error { kind: ErrorKind::Unsupported { .. }, .. }));
        }
        let painted: Vec<usize> = std::iter::from_fn(next)
            .map(|chunk| {
                let index = chunk.index();
                chunk.commit().unwrap();
                index
            })
            .collect();
        painted == [1, 2, 3]
    });
    if !survives {
        (1..4).for_each(|_| next().expect("the child painted nothing").commit().unwrap());
    }
    assert!(next().is_none(), "the claim is still this process's");
    claim.expect("claimed").commit().unwrap();
    assert!(matches!(buffer.claim_next().unwrap(), NextClaim::AllDone));
    say("painted");
}

fn forked_child_claims_what_its_parent_has_not(place: &Place) {
    let name = place.location("forked-painter");
    let buffer = place.render_options().create::<u8, Ix1>(name.location(), 4, 1, "work").unwrap();
    Child::start(place, "claim-and-fork", &[name.as_str()]).expect("painted");
    assert!(buffer.progress().is_complete());
    buffer.discard().unwrap();
}
