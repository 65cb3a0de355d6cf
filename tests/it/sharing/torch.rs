//! The promises of torch's `test_multiprocessing.py` and Paddle's `test_paddle_multiprocessing.py`, under the names of
//! their tests.
//!
//! Each test runs five times (`NDSHM_TEST_ROUNDS` sets another number) with both strategies, and each round checks for
//! leaks.

use std::fmt::Debug;

use libtest_mimic::Trial;
use ndarray::{Array2, ArrayD, Ix2, IxDyn, ShapeBuilder};
use ndarray_shm::counted::{Channel, Shareable, SharingStrategy, inspect_in};
use ndarray_shm::{DType, Directory, Element, ErrorKind, Order, RefcountedArray};

use super::meeting::{Meeting, all, assert_same_memory, attach, leaving_nothing, options, repeats, share, strategies};
use crate::support::Place;
use crate::support::child::Role;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "sharing",
        "torch",
        tests![
            sharing_parent_sees_writes_after_the_child_ends,
            sharing_array_received_twice_is_one_memory,
            preserve_sharing_references_in_one_message_are_one_memory,
            pool_two_workers_fill_in_place_and_return_values,
            fs_name_exists_only_while_the_array_is_shared,
            is_shared_reports_strategy_and_attachment,
            empty_arrays_are_shared,
            integer_without_axes_is_shared,
            send_beyond_the_limit_of_handles_is_refused,
            paddle_values_of_four_types_arrive,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("simple-fill", simple_fill),
    ("send-and-delete", send_and_delete),
    ("fill-pool", fill_pool),
    ("send-back", send_back),
    ("send-values", send_values),
];

/// Runs a test several times with each strategy, and asserts after each round that nothing is left.
fn repeatedly(place: &Place, test: impl Fn(&Meeting, SharingStrategy)) {
    for strategy in strategies() {
        for _ in 0..repeats(5) {
            let meeting = Meeting::new(place);
            test(&meeting, strategy);
            meeting.is_clean();
        }
    }
}

/// A child that fills the arrays of one message with the message's number, and ends.
fn simple_fill(arguments: &[String]) {
    leaving_nothing(arguments, |_, channel| {
        let received = channel.receive::<f32>().unwrap();
        for array in received.arrays {
            attach::<f32>(array).write().unwrap().fill(received.message);
        }
    });
}

fn sharing_parent_sees_writes_after_the_child_ends(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let array = meeting.share(strategy, 0_f32);
        let (child, channel) = meeting.child("simple-fill", &[]);
        channel.send(&4_f32, &[&array]).unwrap();
        child.finish();
        assert!(all(&array, 4.0));
        assert_eq!((array.refcount(), array.in_flight()), (1, 0));
    });
}

/// A child that sends the same array twice, drops it, and stays until it is told to go.
fn send_and_delete(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        let array = share(backend, arguments[1].parse().unwrap(), 1_f32);
        for number in 0..2 {
            channel.send(&number, &[&array]).unwrap();
        }
        drop(array);
        channel.receive::<()>().unwrap();
    });
}

fn sharing_array_received_twice_is_one_memory(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let (child, channel) = meeting.child("send-and-delete", &[strategy.as_str()]);
        let [one, other] = [0, 1].map(|number| {
            let received = channel.receive::<i32>().unwrap();
            assert_eq!((received.message, received.arrays.len()), (number, 1));
            attach::<f32>(received.arrays.into_iter().next().unwrap())
        });
        assert!(all(&one, 1.0) && all(&other, 1.0));
        assert_same_memory(&one, &other);
        drop((one, other));
        channel.send(&(), &[]).unwrap();
        child.finish();
    });
}

fn preserve_sharing_references_in_one_message_are_one_memory(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let (here, there) = Channel::pair().unwrap();
        let (array, another) = (meeting.share(strategy, 1_f32), meeting.share(strategy, 2_f32));
        here.send("references", &[&array, &array, &another, &array, &array]).unwrap();
        let received = there.receive::<String>().unwrap();
        assert_eq!(received.message, "references");
        let got: Vec<_> = received.arrays.into_iter().map(attach::<f32>).collect();
        assert!(all(&got[2], 2.0), "the other array, in its place");
        for same in [&got[0], &got[1], &got[3], &got[4]] {
            assert_same_memory(same, &array);
            assert_same_memory(same, &got[4]);
        }
        assert!(all(&got[2], 2.0), "the other array is unchanged");
    });
}

/// A worker that fills each received array in place with its message's number and answers with the sum, until the
/// channel closes.
fn fill_pool(arguments: &[String]) {
    leaving_nothing(arguments, |_, channel| {
        while let Ok(received) = channel.receive::<f32>() {
            let [array] = <[_; 1]>::try_from(received.arrays).unwrap();
            let array = attach::<f32>(array);
            array.write().unwrap().fill(received.message);
            let sum = array.read().unwrap().sum();
            channel.send(&sum, &[]).unwrap();
        }
    });
}

fn pool_two_workers_fill_in_place_and_return_values(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let workers = [meeting.child("fill-pool", &[]), meeting.child("fill-pool", &[])];
        let arrays: Vec<_> = (0..6).map(|_| meeting.share(strategy, 0_f32)).collect();
        let number = |index: usize| index as f32 + 4.0;
        for (index, array) in arrays.iter().enumerate() {
            workers[index % 2].1.send(&number(index), &[array]).unwrap();
        }
        for (index, array) in arrays.iter().enumerate() {
            let sum = workers[index % 2].1.receive::<f32>().unwrap().message;
            assert_eq!(sum, 25.0 * number(index));
            assert!(all(array, number(index)));
        }
        for (child, channel) in workers {
            drop(channel);
            child.finish();
        }
    });
}

fn fs_name_exists_only_while_the_array_is_shared(place: &Place) {
    repeatedly(place, |meeting, _| {
        let hidden = usize::from(meeting.place.has_hidden_drafts());
        let fill = |mut view: ndarray::ArrayViewMut2<'_, f32>| {
            assert_eq!(meeting.names(), hidden, "a draft has no public name");
            view.fill(1.0);
        };
        let array = options(&meeting.place.backend).share_with(SharingStrategy::FileSystem, (5, 5), fill).unwrap();
        assert_eq!(meeting.names(), 1);
        let (here, there) = Channel::pair().unwrap();
        here.send(&(), &[&array]).unwrap();
        drop(array);
        assert_eq!(meeting.names(), 1, "a message in flight keeps the name");
        let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
        let array = attach::<f32>(received);
        assert_eq!(meeting.names(), 1);
        drop(array);
        assert_eq!(meeting.names(), 0);
    });
}

fn is_shared_reports_strategy_and_attachment(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let original = Array2::<f32>::ones((5, 5));
        let array = options(&meeting.place.backend).share_with(strategy, (5, 5), |mut view| view.assign(&original));
        let array = array.unwrap();
        assert_eq!(array.strategy(), strategy);
        assert_eq!(array.location().is_some(), strategy == SharingStrategy::FileSystem);
        if let Some(location) = array.location() {
            assert!(meeting.place.backend.attached(location).unwrap());
            let inspection = inspect_in(&meeting.place.backend, location).unwrap();
            assert_eq!((inspection.refcount, inspection.is_orphaned()), (1, false));
        }
        array.write().unwrap().fill(2.0);
        assert!(original.iter().all(|element| *element == 1.0), "sharing copies an ordinary array once");
    });
}

/// A child that sends every received array back, until the channel closes.
fn send_back(arguments: &[String]) {
    leaving_nothing(arguments, |_, channel| {
        while let Ok(received) = channel.receive::<String>() {
            let [array] = <[_; 1]>::try_from(received.arrays).unwrap();
            let sent = match array.dtype() {
                DType::U8 => send_again::<u8>(&channel, array),
                DType::F32 => send_again::<f32>(&channel, array),
                DType::I64 => send_again::<i64>(&channel, array),
                DType::F64 => send_again::<f64>(&channel, array),
                other => panic!("{other}"),
            };
            assert_eq!(sent, received.message);
        }
    });
}

/// Sends a received array back, and returns the message that was sent with it.
fn send_again<T: Element>(channel: &Channel, array: ndarray_shm::counted::ReceivedArray) -> String {
    let array = array.attach::<T, IxDyn>().unwrap();
    let message = format!("{} {:?} {}", array.dtype(), array.shape(), array.order());
    channel.send(&message, &[&array]).unwrap();
    message
}

/// Sends an array to a child that sends it back, and asserts that it is the same.
fn there_and_back<T: Element + PartialEq + Debug>(
    meeting: &Meeting,
    channel: &Channel,
    strategy: SharingStrategy,
    (shape, order): (&[usize], Order),
    value: T,
) {
    let layout = IxDyn(shape).set_f(order == Order::F);
    let fill = |mut view: ndarray::ArrayViewMutD<'_, T>| view.fill(value);
    let array = options(&meeting.place.backend).share_with(strategy, layout, fill).unwrap();
    // Where both orders have the same bytes, the array reports C.
    let order = array.order();
    let message = format!("{} {shape:?} {order}", T::DTYPE);
    channel.send(&message, &[&array]).unwrap();
    let received = channel.receive::<String>().unwrap();
    assert_eq!(received.message, message);
    let [back] = <[_; 1]>::try_from(received.arrays).unwrap();
    assert_eq!((back.dtype(), back.shape(), back.order(), back.strategy()), (T::DTYPE, shape, order, strategy));
    let back = back.attach::<T, IxDyn>().unwrap();
    assert_eq!(*back.read().unwrap(), ArrayD::from_elem(shape, value));
    assert_eq!((back.shape(), back.order()), (shape, order));
}

fn empty_arrays_are_shared(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let (child, channel) = meeting.child("send-back", &[]);
        for shape in [&[0][..], &[3, 0, 2], &[0, 0]] {
            there_and_back(meeting, &channel, strategy, (shape, Order::C), 1_u8);
            there_and_back(meeting, &channel, strategy, (shape, Order::F), 1_f32);
            there_and_back(meeting, &channel, strategy, (shape, Order::C), 1_f64);
        }
        drop(channel);
        child.finish();
    });
}

fn integer_without_axes_is_shared(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let (child, channel) = meeting.child("send-back", &[]);
        there_and_back(meeting, &channel, strategy, (&[], Order::C), -7_i64);
        there_and_back(meeting, &channel, strategy, (&[], Order::C), 7_u8);
        there_and_back(meeting, &channel, strategy, (&[2, 3], Order::F), 1.5_f32);
        drop(channel);
        child.finish();
    });
}

fn send_beyond_the_limit_of_handles_is_refused(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let (here, there) = Channel::pair().unwrap();
        let array = meeting.share(strategy, 1_f32);
        let many = [(); 200].map(|()| &array as &dyn Shareable);
        let sent = here.send("many", &many);
        if strategy == SharingStrategy::FileDescriptor {
            sent.unwrap();
            assert_eq!(there.receive::<String>().unwrap().arrays.len(), 200);
            let error = array.handle().unwrap_err();
            assert!(
                matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("publish"),
                "{error}"
            );
        } else {
            let error = sent.unwrap_err();
            assert!(matches!(error.kind, ErrorKind::TooManyHandles { limit: 128, .. }), "{error}");
            assert_eq!(array.in_flight(), 0, "an array that was not sent is not in flight");
        }
        here.send("one", &[&array]).unwrap();
        assert_eq!(there.receive::<String>().unwrap().message, "one", "and nothing before it");
    });
}

/// Returns the element at a place of a sample array.
fn value<T: From<i16>>(at: (usize, usize)) -> T {
    T::from(i16::try_from(at.0 * 100 + at.1).expect("a small number") - 250)
}

fn sample<T: Element + From<i16>>(backend: &Directory, strategy: SharingStrategy) -> RefcountedArray<T, Ix2> {
    let fill = |mut view: ndarray::ArrayViewMut2<'_, T>| view.indexed_iter_mut().for_each(|(at, v)| *v = value(at));
    options(backend).share_with(strategy, (6, 7).f(), fill).unwrap()
}

fn is_sample<T: Element + From<i16> + PartialEq>(array: &RefcountedArray<T, Ix2>) -> bool {
    array.shape() == [6, 7] && array.read().unwrap().indexed_iter().all(|(at, v)| *v == value(at))
}

/// A child that sends an array of each type, and adds one to each element after the answer.
fn send_values(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        let strategy = arguments[1].parse().unwrap();
        let (a, b) = (sample::<f32>(backend, strategy), sample::<f64>(backend, strategy));
        let (c, d) = (sample::<i32>(backend, strategy), sample::<i64>(backend, strategy));
        channel.send("values", &[&a, &b, &c, &d]).unwrap();
        channel.receive::<()>().unwrap();
        *a.write().unwrap() += 1.0;
        *b.write().unwrap() += 1.0;
        *c.write().unwrap() += 1;
        *d.write().unwrap() += 1;
    });
}

fn paddle_values_of_four_types_arrive(place: &Place) {
    repeatedly(place, |meeting, strategy| {
        let (child, channel) = meeting.child("send-values", &[strategy.as_str()]);
        let received = channel.receive::<String>().unwrap();
        let types: Vec<DType> = received.arrays.iter().map(ndarray_shm::counted::ReceivedArray::dtype).collect();
        assert_eq!(types, [DType::F32, DType::F64, DType::I32, DType::I64]);
        let [a, b, c, d] = <[_; 4]>::try_from(received.arrays).unwrap();
        let (a, b) = (attach::<f32>(a), attach::<f64>(b));
        let (c, d) = (attach::<i32>(c), attach::<i64>(d));
        assert!(is_sample(&a) && is_sample(&b) && is_sample(&c) && is_sample(&d));
        channel.send(&(), &[]).unwrap();
        child.finish();
        *a.write().unwrap() -= 1.0;
        *b.write().unwrap() -= 1.0;
        *c.write().unwrap() -= 1;
        *d.write().unwrap() -= 1;
        assert!(is_sample(&a) && is_sample(&b) && is_sample(&c) && is_sample(&d));
    });
}
