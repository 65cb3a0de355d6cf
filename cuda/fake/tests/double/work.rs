//! Devices, and work in the order of streams.
#![allow(unsafe_code)]

use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
};

use crate::driver::{
    Answer, MIB2, allocate, allow, create, cu, event, hold, live, map_only, properties, read, result, start, stream,
    unmap, violations, write,
};
use crate::{Role, role};

pub const ROLES: &[Role] = &[
    Role {
        name: "visible_devices_are_selected_and_permuted",
        run: permuted,
        environment: Some(&[("FAKE_CUDA_DEVICES", "3")]),
    },
    Role { name: "uuids", run: uuids, environment: None },
    Role {
        name: "devices_without_peer_access_share_nothing",
        run: no_peers,
        environment: Some(&[("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_PEER", "0")]),
    },
    Role { name: "copy_needs_access", run: access, environment: Some(&[("FAKE_CUDA_DEVICES", "2")]) },
    Role { name: "null_stream_waits_for_blocking_streams", run: null_stream, environment: Some(&[]) },
    Role { name: "event_orders_two_streams", run: two_streams, environment: Some(&[]) },
    Role { name: "delayed_work_takes_its_time", run: delayed, environment: Some(&[("FAKE_CUDA_DELAY_US", "20000")]) },
    Role { name: "threads_work_at_once", run: threads, environment: Some(&[]) },
    Role { name: "capture_is_lost_as_by_the_driver", run: captures, environment: Some(&[]) },
    Role { name: "event_of_a_context_covers_all_streams", run: context_event, environment: Some(&[]) },
    Role { name: "released_context_leaves_nothing", run: released, environment: Some(&[]) },
];

/// The start of the output of a process that lists its devices' UUIDs.
fn listed(visible: &str) -> String {
    let output = role("uuids").env("CUDA_VISIBLE_DEVICES", visible).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn permuted() {
    let all = listed("0,1,2");
    let all: Vec<&str> = all.lines().collect();
    assert_eq!(all.len(), 3);
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    assert_eq!(listed("2,0"), format!("{}\n{}", all[2], all[0]));
    assert_eq!(listed("1,7,0"), all[1], "the list ends at the first invalid entry");
    assert_eq!(listed(""), "NO_DEVICE");
    assert_eq!(listed("none"), "NO_DEVICE");
}

fn uuids() {
    if cu!(cuInit(0)) == Err(sys::CUresult::CUDA_ERROR_NO_DEVICE) {
        println!("NO_DEVICE");
        return;
    }
    for device in 0..result(|out| cu!(cuDeviceGetCount(out))).unwrap() {
        println!("{:?}", result(|out| cu!(cuDeviceGetUuid_v2(out, device))).unwrap().bytes);
    }
}

fn no_peers() {
    start();
    assert_eq!(result(|out| cu!(cuDeviceCanAccessPeer(out, 0, 1))), Ok(0));
    let memory = result(|out| cu!(cuMemCreate(out, MIB2, ptr::from_ref(&properties(1)), 0))).unwrap();
    let pointer = map_only(memory, MIB2).unwrap();
    assert_eq!(allow(pointer, MIB2, 0), Err(CUDA_ERROR_INVALID_DEVICE));
    allow(pointer, MIB2, 1).unwrap();
    assert_eq!(write(pointer, b"x"), Err(CUDA_ERROR_INVALID_VALUE), "device 0 is current");
}

fn access() {
    start();
    let memory = create(MIB2).unwrap();
    let pointer = map_only(memory, MIB2).unwrap();
    assert_eq!(write(pointer, b"x"), Err(CUDA_ERROR_INVALID_VALUE));
    allow(pointer, MIB2, 1).unwrap();
    assert_eq!(write(pointer, b"x"), Err(CUDA_ERROR_INVALID_VALUE), "device 0 is current");
    allow(pointer, MIB2, 0).unwrap();
    write(pointer, b"x").unwrap();
    assert_eq!(write(pointer + MIB2 as u64 - 1, b"xy"), Err(CUDA_ERROR_INVALID_VALUE), "beyond the mapping");
    cu!(cuMemsetD8_v2(pointer + 1, b'y', 2)).unwrap();
    cu!(cuMemcpyDtoD_v2(pointer + 3, pointer, 3)).unwrap();
    assert_eq!(read(pointer, 7).unwrap(), b"xyyxyy\0");
    unmap(pointer, MIB2).unwrap();
    assert_eq!(read(pointer, 1), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(violations(), 0);
}

fn null_stream() {
    start();
    let null = ptr::null_mut();
    let pointer = allocate(10).unwrap();
    let (blocking, other) = (stream(0), stream(1));
    let held = hold(blocking);
    cu!(cuMemsetD8Async(pointer, 1, 10, null)).unwrap();
    assert_eq!(cu!(cuStreamQuery(null)), Err(CUDA_ERROR_NOT_READY));
    cu!(cuMemsetD8Async(pointer, 2, 10, other)).unwrap();
    cu!(cuStreamSynchronize(other)).unwrap();
    drop(held);
    assert_eq!(read(pointer, 1).unwrap(), [1], "the NULL stream waited for the blocking stream");

    let held = hold(null);
    cu!(cuMemsetD8Async(pointer, 3, 10, blocking)).unwrap();
    assert_eq!(cu!(cuStreamQuery(blocking)), Err(CUDA_ERROR_NOT_READY));
    drop(held);
    cu!(cuCtxSynchronize()).unwrap();
    assert_eq!(read(pointer, 1).unwrap(), [3]);
}

fn two_streams() {
    start();
    let pointer = allocate(10).unwrap();
    let (first, second, event) = (stream(1), stream(1), event(2).unwrap());
    cu!(cuEventQuery(event)).unwrap();
    let held = hold(first);
    cu!(cuMemsetD8Async(pointer, 1, 10, first)).unwrap();
    cu!(cuEventRecord(event, first)).unwrap();
    cu!(cuStreamWaitEvent(second, event, 0)).unwrap();
    cu!(cuMemsetD8Async(pointer, 2, 10, second)).unwrap();
    assert_eq!(cu!(cuEventQuery(event)), Err(CUDA_ERROR_NOT_READY));
    // A destroyed stream still does its work.
    cu!(cuStreamDestroy_v2(first)).unwrap();
    cu!(cuEventDestroy_v2(event)).unwrap();
    drop(held);
    cu!(cuStreamSynchronize(second)).unwrap();
    assert_eq!(read(pointer, 1).unwrap(), [2]);
    assert_eq!((live("stream"), live("event"), violations()), (1, 0, 0));
}

fn delayed() {
    start();
    let pointer = allocate(10).unwrap();
    let stream = stream(1);
    let begin = Instant::now();
    for value in 1..=3 {
        cu!(cuMemsetD8Async(pointer, value, 10, stream)).unwrap();
    }
    cu!(cuStreamSynchronize(stream)).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(60), "three delays, one after the other");
    assert_eq!(read(pointer, 1).unwrap(), [3]);
}

fn threads() {
    start();
    std::thread::scope(|scope| {
        for value in 1..=4_u8 {
            scope.spawn(move || {
                start();
                let pointer = allocate(1000).unwrap();
                let (first, second) = (stream(0), stream(1));
                let event = event(2).unwrap();
                for round in 0..100 {
                    let held = (round % 10 == 0).then(|| hold(first));
                    cu!(cuMemsetD8Async(pointer, value, 1000, first)).unwrap();
                    cu!(cuEventRecord(event, first)).unwrap();
                    cu!(cuStreamWaitEvent(second, event, 0)).unwrap();
                    cu!(cuMemcpyDtoDAsync_v2(pointer, pointer + 500, 500, second)).unwrap();
                    drop(held);
                    cu!(cuStreamSynchronize(second)).unwrap();
                    assert_eq!(read(pointer, 1000).unwrap(), vec![value; 1000]);
                    cu!(cuMemsetD8_v2(pointer, 0, 1000)).unwrap();
                }
                cu!(cuStreamDestroy_v2(first)).unwrap();
                cu!(cuStreamDestroy_v2(second)).unwrap();
                cu!(cuEventDestroy_v2(event)).unwrap();
                cu!(cuMemFree_v2(pointer)).unwrap();
            });
        }
    });
    assert_eq!((live("stream"), live("event"), live("allocation"), violations()), (0, 0, 0, 0));
}

fn released() {
    start();
    let kinds = ["context", "stream", "event", "allocation", "host"];
    stream(0);
    event(2).unwrap();
    allocate(10).unwrap();
    result(|out| cu!(cuMemHostAlloc(out, 10, 0))).unwrap();
    assert_eq!(kinds.map(live), [1; 5]);
    cu!(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    assert_eq!(kinds.map(live), [0; 5]);
    assert_eq!(crate::driver::memory_in_use(), 0);
}

type Call<'a> = &'a dyn Fn() -> Answer;

/// The answers are those of driver 580, in the table of docs/platforms.md.
fn captures() {
    let context = start();
    let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let (other, own_event, event) = (stream(1), event(2).unwrap(), event(2).unwrap());
    let exchange = |mut mode: sys::CUstreamCaptureMode| cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)).unwrap();
    let pointer = allocate(10).unwrap();
    let is_capturing = |stream| {
        result(|out| cu!(cuStreamIsCapturing(stream, out))).map(|status: sys::CUstreamCaptureStatus| status as u32)
    };
    let null = ptr::null_mut();
    let mut lost = 0;
    // Each call, whether it ends the capture of a stream that does not block, of one that blocks, and in relaxed mode.
    let calls: [(&str, Call<'_>, [bool; 3]); 10] = [
        ("cuEventQuery", &|| cu!(cuEventQuery(event)), [true, true, false]),
        ("cuEventSynchronize", &|| cu!(cuEventSynchronize(event)), [true, true, false]),
        ("cuStreamSynchronize", &|| cu!(cuStreamSynchronize(other)), [true, true, false]),
        ("cuCtxSynchronize", &|| cu!(cuCtxSynchronize()), [true, true, true]),
        ("cuCtxRecordEvent", &|| cu!(cuCtxRecordEvent(context, event)), [true, true, true]),
        ("cuEventRecord in the legacy stream", &|| cu!(cuEventRecord(event, null)), [false, true, false]),
        ("cuEventRecord in another stream", &|| cu!(cuEventRecord(event, other)), [false, false, false]),
        ("cuStreamWaitEvent", &|| cu!(cuStreamWaitEvent(other, own_event, 0)), [false, false, false]),
        ("a fill in another stream", &|| cu!(cuMemsetD8Async(pointer, 1, 10, other)), [false, false, false]),
        ("cuMemCreate", &|| create(MIB2).map(|memory| cu!(cuMemRelease(memory)).unwrap()), [false, false, false]),
    ];
    for (name, call, ends) in calls {
        for (case, ends) in ends.into_iter().enumerate() {
            let (is_blocking, is_relaxed) = (case == 1, case == 2);
            let captured = stream(u32::from(!is_blocking));
            assert_eq!(is_capturing(captured), Ok(0));
            cu!(cuStreamBeginCapture_v2(captured, global)).unwrap();
            assert_eq!(is_capturing(captured), Ok(1));
            assert_eq!(is_capturing(null), if is_blocking { Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(0) });
            cu!(cuMemsetD8Async(pointer, 9, 10, captured)).unwrap(); // not now
            if is_relaxed {
                exchange(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
            }
            assert_eq!(call().is_err(), ends, "{name}, case {case}");
            exchange(global);
            assert_eq!(is_capturing(captured), Ok(if ends { 2 } else { 1 }));
            let graph = result(|out| cu!(cuStreamEndCapture(captured, out)));
            assert_eq!(graph.err(), ends.then_some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "{name}, case {case}");
            assert_eq!(is_capturing(captured), Ok(0));
            lost += u64::from(ends);
            assert_eq!(violations(), lost);
        }
    }
    cu!(cuCtxSynchronize()).unwrap();
    assert_eq!(read(pointer, 1).unwrap(), [1]);
}

fn context_event() {
    let context = start();
    let pointer = allocate(10).unwrap();
    let (first, second, event) = (stream(1), stream(0), event(2).unwrap());
    let held = [hold(first), hold(second)];
    cu!(cuMemsetD8Async(pointer, 1, 10, first)).unwrap();
    cu!(cuCtxRecordEvent(context, event)).unwrap();
    assert_eq!(cu!(cuEventQuery(event)), Err(CUDA_ERROR_NOT_READY));
    let [first_held, second_held] = held;
    drop(first_held);
    cu!(cuStreamSynchronize(first)).unwrap();
    assert_eq!(cu!(cuEventQuery(event)), Err(CUDA_ERROR_NOT_READY), "the other stream has work");
    drop(second_held);
    cu!(cuEventSynchronize(event)).unwrap();
    let later = hold(first);
    cu!(cuEventQuery(event)).unwrap();
    drop(later);
    assert_eq!(crate::driver::event(6), Err(CUDA_ERROR_NOT_SUPPORTED), "the crate shares no events");
}
