//! A Python process that uses only its standard library at the other end of a channel: it receives arrays by descriptor
//! and by name, byte for byte, forwards them, and sends its own messages.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2, IxDyn, ShapeBuilder};
use ndarray_shm::counted::{Channel, ChannelListener, Foreign, Reclaim, Shareable, SharingStrategy, inspect_in};
use ndarray_shm::{CreateOptions, DType, ErrorKind, FrozenArray, Order, RefcountedArray};

use super::peer::{Peer, axes};
use super::sample::{Sample, sample};
use crate::support::child::{Child, Role, hear, say};
use crate::support::{Place, backend_of_child};
use crate::tests;

const STRATEGIES: [SharingStrategy; 2] = SharingStrategy::ALL;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "interop",
        "channels",
        tests![
            python_receives_every_type_shape_and_order,
            python_receives_descriptors_in_several_batches,
            python_forwards_received_arrays,
            python_forwards_foreign_descriptors,
            python_sends_messages_of_its_own,
            python_attached_by_handle_holds_an_uncounted_lease,
            python_mapping_prevents_reclaim,
            a_killed_python_process_leaves_nothing,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("hold-and-show-handle", hold_and_show_handle)];

/// Returns a directory for the test, a Python process, and a channel to that process.
fn both(place: &Place) -> (Place, Peer, Channel) {
    let place = place.private();
    let sockets = tempfile::tempdir().unwrap();
    let path = sockets.path().join("channel");
    let listener = ChannelListener::bind(&path).unwrap();
    let mut python = Peer::start(&place, "channel_peer.py");
    python.expect(format!("connect {}", path.display()), "done");
    let channel = listener.accept_timeout(Duration::from_secs(60)).unwrap();
    (place, python, channel)
}

fn share<T: Sample>(
    place: &Place,
    strategy: SharingStrategy,
    (shape, order): (&[usize], Order),
    seed: usize,
) -> RefcountedArray<T, IxDyn> {
    let options = CreateOptions::new().directory(place.backend.clone());
    let fill = |mut view: ndarray::ArrayViewMutD<'_, T>| view.assign(&sample(shape, seed));
    options.share_with(strategy, IxDyn(shape).set_f(order == Order::F), fill).unwrap()
}

/// Returns every byte of an array in memory order, in the peer's notation.
fn bytes_of<T: Sample>(array: &RefcountedArray<T, IxDyn>) -> String {
    let guard = array.read().unwrap();
    let elements = guard.as_slice_memory_order().expect("an array without gaps");
    // SAFETY: the elements are numbers, so that every byte is initialized. The guard outlives every use of the bytes.
    #[allow(unsafe_code)]
    let bytes = unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) };
    hex(bytes)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text");
        text
    })
}

/// Sends arrays of this type, shape and order, one per strategy. The peer must report exactly their metadata and bytes.
fn arrives<T: Sample>(
    place: &Place,
    python: &mut Peer,
    channel: &Channel,
    index: &mut usize,
    shape_and_order: (&[usize], Order),
) {
    for strategy in STRATEGIES {
        let array = share::<T>(place, strategy, shape_and_order, 5);
        channel.send(&T::DTYPE.to_string(), &[&array]).unwrap();
        python.expect("receive", &format!("'{}' 1", T::DTYPE));
        let about = format!("{strategy} {} {} {}", T::DTYPE, axes(array.shape()), array.order());
        // An array without axes has an empty shape text: that leaves two spaces in a row, which the peer does not
        // print.
        python.expect(format!("about {index}"), &about.split_whitespace().collect::<Vec<_>>().join(" "));
        python.expect(format!("payload {index}"), &bytes_of(&array));
        *index += 1;
    }
}

fn python_receives_every_type_shape_and_order(place: &Place) {
    let (place, mut python, channel) = both(place);
    let mut index = 0;
    macro_rules! every {
        ($($type:ty),*) => {$(
            arrives::<$type>(&place, &mut python, &channel, &mut index, (&[3, 4], Order::C));
            arrives::<$type>(&place, &mut python, &channel, &mut index, (&[2, 3, 4], Order::F));
        )*};
    }
    every!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);
    #[cfg(feature = "half")]
    every!(half::f16, half::bf16);
    #[cfg(feature = "num-complex")]
    every!(num_complex::Complex<f32>, num_complex::Complex<f64>);
    for shape in [&[][..], &[0], &[3, 0, 2], &[1], &[2000]] {
        arrives::<f64>(&place, &mut python, &channel, &mut index, (shape, Order::C));
    }
    let frozen = FrozenArray::<u8, _>::create_with(5, |mut view| view.assign(&ndarray::aview1(b"bytes"))).unwrap();
    channel.send("frozen", &[&frozen]).unwrap();
    python.expect("receive", "'frozen' 1");
    python.expect(format!("about {index}"), "sealed |u1 5 C");
    python.expect(format!("payload {index}"), &hex(b"bytes"));
    python.expect_error(format!("keep {index}"), "PermissionError");
    python.expect("give_up", "done");
    python.finish();
    // Python's mappings do not consume the single-use handles that it received: they stay in flight until they expire.
    let reclaimed = Reclaim::new().run(&place.backend).unwrap();
    assert_eq!((reclaimed.attached, reclaimed.removed.len()), (0, 0), "{reclaimed:?}");
    assert_eq!(reclaimed.in_flight, index / 2);
}

fn python_receives_descriptors_in_several_batches(place: &Place) {
    const MANY: usize = 150;
    let (place, mut python, channel) = both(place);
    let make = |seed| share::<u16>(&place, SharingStrategy::FileDescriptor, (&[7], Order::C), seed);
    let arrays: Vec<_> = (0..MANY).map(make).collect();
    let all: Vec<&dyn Shareable> = arrays.iter().map(|array| array as _).collect();
    channel.send(&MANY, &all).unwrap();
    python.expect("receive", &format!("{MANY} {MANY}"));
    for (index, array) in arrays.iter().enumerate() {
        python.expect(format!("payload {index}"), &bytes_of(array));
    }
    let back: Vec<String> = (0..MANY).rev().map(|index| index.to_string()).collect();
    python.expect(format!("send back {}", back.join(" ")), "done");
    let received = channel.receive::<String>().unwrap();
    assert_eq!(received.arrays.len(), MANY);
    for (array, seed) in received.arrays.into_iter().zip((0..MANY).rev()) {
        assert_eq!(*array.attach::<u16, IxDyn>().unwrap().read().unwrap(), sample::<u16>(&[7], seed));
    }
    python.finish();
}

fn python_forwards_received_arrays(place: &Place) {
    let (place, mut python, channel) = both(place);
    for (index, strategy) in STRATEGIES.into_iter().enumerate() {
        let array = share::<i32>(&place, strategy, (&[2, 3], Order::F), 1);
        channel.send("first", &[&array]).unwrap();
        python.expect("receive", "'first' 1");
        python.expect(format!("send again {index}"), "done");
        let received = channel.receive::<String>().unwrap();
        assert_eq!((received.message.as_str(), received.arrays.len()), ("again", 1));
        let same = received.arrays.into_iter().next().unwrap().attach::<i32, Ix2>().unwrap();
        same.write().unwrap()[[1, 2]] = -77;
        assert_eq!(array.read().unwrap()[[1, 2]], -77, "the very same memory");
        python.expect(format!("payload {index}"), &bytes_of(&array));
        assert_eq!(
            (array.refcount(), array.in_flight()),
            (2, 0),
            "Python is not counted, and its handle was passed on"
        );
        // Writes by Python arrive too. No other process uses the elements meanwhile.
        python.expect(format!("keep {index}"), "done");
        python.expect(format!("write {index} 0 2a000000"), "done");
        assert_eq!(same.read().unwrap()[[0, 0]], 42);
        python.expect(format!("let_go {index}"), "done");
        // An array that came back through another process still has the same locks.
        let guard = array.write().unwrap();
        assert_eq!(same.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
        drop(guard);
    }
    let frozen = FrozenArray::<u8, _>::create_with(3, |mut view| view.fill(9)).unwrap();
    channel.send("frozen", &[&frozen]).unwrap();
    python.expect("receive", "'frozen' 1");
    python.expect("send frozen 2", "done");
    let received = channel.receive::<String>().unwrap().arrays.into_iter().next().unwrap();
    assert_eq!(received.frozen::<u8, Ix1>().unwrap().sum(), 27);
    python.expect("give_up", "done");
    assert!(matches!(channel.receive::<String>().unwrap_err().kind, ErrorKind::Closed { .. }));
    python.finish();
    assert_eq!(std::fs::read_dir(place.directory()).unwrap().count(), 0);
}

fn python_forwards_foreign_descriptors(place: &Place) {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    let (place, mut python, channel) = both(place);
    // A socket, which cannot be opened again through /proc.
    let (end, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let foreign = Foreign::new("socket", DType::U8, &[5], Order::C, "\u{1f980}", OwnedFd::from(other)).unwrap();
    let array = share::<u8>(&place, SharingStrategy::FileDescriptor, (&[2], Order::C), 1);
    channel.send("take", &[&foreign, &array]).unwrap();
    drop(foreign);
    python.expect("receive", "'take' 2");
    python.expect("about 0", "foreign |u1 5 C");
    python.expect_error("payload 0", "ValueError");
    python.expect("payload 1", &bytes_of(&array));
    python.expect("send back 1 0", "done");
    python.expect("give_up", "done");
    let [same, foreign] = <[_; 2]>::try_from(channel.receive::<String>().unwrap().arrays).unwrap();
    assert_eq!(bytes_of(&same.attach::<u8, IxDyn>().unwrap()), bytes_of(&array));
    let foreign = foreign.foreign("socket").unwrap();
    assert_eq!(foreign.note(), "\u{1f980}");
    (&end).write_all(b"bytes").unwrap();
    drop(end);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut foreign.into_descriptor(), &mut text).unwrap();
    assert_eq!(text, "bytes");
    python.finish();
}

fn python_sends_messages_of_its_own(place: &Place) {
    let (_place, mut python, channel) = both(place);
    python.expect("send_numbers 1 2 3", "done");
    python.expect("send word", "done");
    let error = channel.receive::<String>().unwrap_err();
    assert!(matches!(error.kind, ndarray_shm::ErrorKind::Message { .. }), "{error}");
    assert_eq!(channel.receive::<Vec<i32>>().unwrap().message, [1, 2, 3]);
    assert_eq!(channel.receive::<String>().unwrap().message, "word");
    channel.send(&("mixed", 7, [1.5], None::<u8>), &[]).unwrap();
    python.expect("receive", "['mixed',7,[1.5],None] 0");
    // The message exceeds every socket buffer: it only passes if both ends work at the same time.
    python.tell("receive");
    channel.send(&"x".repeat(3 << 20), &[]).unwrap();
    let answer = python.answer_within(Duration::from_secs(60)).expect("an answer");
    assert_eq!(answer.len(), (3 << 20) + 4);
    drop(channel);
    python.expect_error("receive", "EOFError");
    python.finish();
}

fn python_attached_by_handle_holds_an_uncounted_lease(place: &Place) {
    let (place, mut python, _channel) = both(place);
    let array = share::<f32>(&place, SharingStrategy::FileSystem, (&[4], Order::C), 3);
    let location = array.location().unwrap().clone();
    let expected = bytes_of(&array);
    let handle = array.handle().unwrap();
    python.expect(format!("keep_handle {handle}"), "done");
    python.expect(format!("kept {handle}"), &expected);
    let inspection = inspect_in(&place.backend, &location).unwrap();
    assert_eq!((inspection.refcount, inspection.in_flight), (1, 1), "nothing was changed");
    // Python's attachment did not consume the handle: Python may forward it, or the sender may revoke it.
    assert!(handle.revoke().unwrap());
    drop(array); // the last counted handle removes the name, although Python holds a lease
    assert!(inspect_in(&place.backend, &location).unwrap_err().is_not_found());
    python.expect(format!("kept {handle}"), &expected);
    python.expect_error(format!("keep_handle {handle}"), "FileNotFoundError");
    // The handle does not open another array of the same name.
    let options = CreateOptions::new().directory(place.backend.clone());
    let other = options.create_counted::<f32, Ix1>(&location, 4).unwrap();
    python.expect_error(format!("keep_handle {handle}"), "FileNotFoundError");
    drop(other);
    python.finish();
    assert_eq!(std::fs::read_dir(place.directory()).unwrap().count(), 0);
}

/// A child that holds an array, prints a handle to it, revokes that handle when told, and then waits to be killed.
fn hold_and_show_handle(_: &[String]) {
    let options = CreateOptions::new().directory(backend_of_child());
    let array = options.share_with::<u8, Ix1>(SharingStrategy::FileSystem, 4, |mut view| view.fill(1)).unwrap();
    let handle = array.handle().unwrap();
    say(&handle);
    hear();
    assert!(handle.revoke().unwrap());
    say("taken back");
    hear();
}

fn python_mapping_prevents_reclaim(place: &Place) {
    let (place, mut python, _channel) = both(place);
    let mut holder = Child::start(&place, "hold-and-show-handle", &[]);
    let handle = holder.line();
    python.expect(format!("keep_handle {handle}"), "done");
    holder.tell("take it back");
    holder.expect("taken back");
    holder.kill();
    let reclaimed = Reclaim::new().run(&place.backend).unwrap();
    assert_eq!((reclaimed.attached, reclaimed.removed.len()), (1, 0), "{reclaimed:?}");
    python.expect(format!("kept {handle}"), "0x01010101");
    python.expect(format!("let_go {handle}"), "done");
    let reclaimed = Reclaim::new().run(&place.backend).unwrap();
    assert_eq!((reclaimed.attached, reclaimed.removed.len()), (0, 1), "{reclaimed:?}");
    python.finish();
}

fn a_killed_python_process_leaves_nothing(place: &Place) {
    let (place, mut python, channel) = both(place);
    for strategy in STRATEGIES {
        channel.send("take", &[&share::<u8>(&place, strategy, (&[4], Order::C), 0)]).unwrap();
        python.expect("receive", "'take' 1");
    }
    python.expect("keep 0", "done");
    python.expect("keep 1", "done");
    python.kill();
    assert!(matches!(channel.receive::<String>().unwrap_err().kind, ErrorKind::Closed { .. }));
    // The file-system array keeps one handle that no process attached; it expires later.
    let reclaimed = Reclaim::new().run(&place.backend).unwrap();
    assert_eq!((reclaimed.attached, reclaimed.in_flight, reclaimed.removed.len()), (0, 1, 0), "{reclaimed:?}");
}
