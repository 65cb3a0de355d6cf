//! Forked children and inherited descriptors: memory is inherited, counts are not, and a channel belongs to one process.

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use ndarray_shm::counted::{Channel, Socket};

use super::meeting::{Meeting, Traces, all, attach, leaving_nothing, names, share, strategies};
use crate::support::Place;
use crate::support::child::{ROLE, Role, program};
use crate::support::forks::in_forked_child;
use crate::support::{backend_of_child, machine::open_files};
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
        ],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("fork-and-add", fork_and_add), ("fork-with-channel", fork_with_channel), ("inheritor", inheritor)];

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
            refused.is_unsupported()
                && refused.to_string().contains("forked")
                && also.is_unsupported()
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
        assert!(here.receive::<()>().unwrap_err().is_closed());
        assert!(child.wait().unwrap().success());
        drop(array);
        meeting.is_clean();
    }
}
