//! Memory that processes share.
#![allow(unsafe_code)]

use std::env;
use std::ffi::c_char;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_ALREADY_MAPPED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_UNKNOWN,
};

use crate::driver::{
    DESCRIPTOR, MIB2, NO_HANDLES, allocate, create, cu, export, hold, import, live, location, map, memory_in_use, read,
    result, start, stream, unmap, violations, write,
};
use crate::{Role, role};

pub const ROLES: &[Role] = &[
    Role { name: "processes_share_memory_through_a_descriptor", run: share, environment: Some(&[]) },
    Role { name: "importer", run: importer, environment: None },
    Role { name: "memory_of_a_killed_process_is_free", run: killed, environment: Some(&[]) },
    Role { name: "holder", run: holder, environment: None },
    Role { name: "opened_memory_outlives_its_process", run: opened, environment: Some(&[]) },
    Role { name: "exporter", run: exporter, environment: None },
    Role { name: "pools_are_shared", run: pool, environment: Some(&[]) },
    Role { name: "pool_importer", run: pool_importer, environment: None },
    Role { name: "forked_child_gets_not_initialized", run: fork, environment: Some(&[]) },
];

/// Another process of a test, which is killed when the test ends.
struct Other {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that the process writes.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets the process go on, and checks that it ends without an error.
    fn finish(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// Waits until the test drops its end of the standard input.
fn wait_for_test() {
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
}

fn variable<T: std::str::FromStr>(name: &str) -> T {
    env::var(name).ok().and_then(|text| text.parse().ok()).expect("the test sets the variable")
}

fn hex(bytes: &[c_char]) -> String {
    hex_bytes(&bytes.iter().map(|byte| byte.to_ne_bytes()[0]).collect::<Vec<_>>())
}

fn hex_bytes(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

fn unhex(text: &str) -> [c_char; 64] {
    std::array::from_fn(|index| {
        c_char::from_ne_bytes([u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap()])
    })
}

/// Waits until a condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_mins(1), "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn share() {
    start();
    let memory = create(2 * MIB2).unwrap();
    let pointer = map(memory, 2 * MIB2).unwrap();
    write(pointer + 5, b"from the exporter").unwrap();
    let descriptor = export(memory).unwrap();
    cu!(cuMemRelease(memory)).unwrap();
    let importer = Other::start(role("importer").env("DESCRIPTOR", descriptor.to_string()));
    importer.finish();
    assert_eq!(read(pointer + 5, 17).unwrap(), b"from the importer");
    assert_eq!(memory_in_use(), 2 * MIB2 as u64, "the same memory is counted once");
    unmap(pointer, 2 * MIB2).unwrap();
    assert_eq!(memory_in_use(), 2 * MIB2 as u64, "the descriptor keeps the memory");
    // SAFETY: nothing else uses the descriptor.
    assert_eq!(unsafe { libc::close(descriptor) }, 0);
    assert_eq!(memory_in_use(), 0);
    assert_eq!(violations(), 0);
}

fn importer() {
    start();
    let memory = import(variable("DESCRIPTOR")).unwrap();
    let pointer = map(memory, 2 * MIB2).unwrap();
    assert_eq!(read(pointer + 5, 17).unwrap(), b"from the exporter");
    write(pointer + 5, b"from the importer").unwrap();
    let properties = result(|out| cu!(cuMemGetAllocationPropertiesFromHandle(out, memory))).unwrap();
    assert_eq!((properties.location.id, properties.requestedHandleTypes), (0, NO_HANDLES));
    assert_eq!(export(memory), Err(CUDA_ERROR_INVALID_VALUE), "it was not created here");
    assert_eq!(import(0), Err(CUDA_ERROR_UNKNOWN), "the standard input is no memory");
}

fn killed() {
    start();
    let mut holder = Other::start(&mut role("holder"));
    assert_eq!(holder.line(), "ready");
    assert_eq!(memory_in_use(), 6 * MIB2 as u64);
    holder.kill();
    until("the kernel has freed the memory", || memory_in_use() == 0);
}

fn holder() {
    start();
    map(create(2 * MIB2).unwrap(), 2 * MIB2).unwrap();
    create(2 * MIB2).unwrap();
    // Sizes are rounded up.
    allocate(MIB2 + 1).unwrap();
    say("ready");
    wait_for_test();
}

fn open(handle: &str) -> Result<sys::CUdeviceptr, sys::CUresult> {
    let handle = sys::CUipcMemHandle { reserved: unhex(handle) };
    result(|out| cu!(cuIpcOpenMemHandle_v2(out, handle, 1)))
}

fn opened() {
    start();
    let mut exporter = Other::start(&mut role("exporter"));
    let handle = exporter.line();
    let pointer = open(&handle).unwrap();
    assert_eq!(read(pointer, 8).unwrap(), b"exported");
    assert_eq!(open(&handle), Err(CUDA_ERROR_ALREADY_MAPPED));
    exporter.kill();
    assert_eq!(read(pointer, 8).unwrap(), b"exported");
    assert_eq!(memory_in_use(), MIB2 as u64);
    assert_eq!(cu!(cuMemFree_v2(pointer)), Err(CUDA_ERROR_INVALID_VALUE));
    cu!(cuIpcCloseMemHandle(pointer)).unwrap();
    assert_eq!(open(&handle), Err(CUDA_ERROR_INVALID_VALUE));
    until("the kernel has freed the memory", || memory_in_use() == 0);
    assert_eq!((live("opened"), violations()), (0, 1));
}

fn exporter() {
    start();
    let pointer = allocate(100).unwrap();
    write(pointer, b"exported").unwrap();
    let handle = result(|out| cu!(cuIpcGetMemHandle(out, pointer))).unwrap();
    assert_eq!(open(&hex(&handle.reserved)), Err(CUDA_ERROR_INVALID_CONTEXT), "a process opens no memory of its own");
    let mapping = map(create(MIB2).unwrap(), MIB2).unwrap();
    assert_eq!(
        result(|out| cu!(cuIpcGetMemHandle(out, mapping))).map(|handle| handle.reserved),
        Err(CUDA_ERROR_INVALID_VALUE)
    );
    unmap(mapping, MIB2).unwrap();
    say(&hex(&handle.reserved));
    wait_for_test();
}

fn pool() {
    start();
    let properties = sys::CUmemPoolProps {
        allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: DESCRIPTOR,
        location: location(0),
        win32SecurityAttributes: ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let pool = result(|out| cu!(cuMemPoolCreate(out, &raw const properties))).unwrap();
    let stream = stream(1);
    let pointer = result(|out| cu!(cuMemAllocFromPoolAsync(out, 100, pool, stream))).unwrap();
    write(pointer, b"of a pool").unwrap();
    let descriptor =
        result(|out: *mut i32| cu!(cuMemPoolExportToShareableHandle(out.cast(), pool, DESCRIPTOR, 0))).unwrap();
    // SAFETY: the command takes a number.
    assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) }, 0);
    let data = result(|out| cu!(cuMemPoolExportPointer(out, pointer))).unwrap();
    let data = hex_bytes(&data.reserved);
    Other::start(role("pool_importer").env("DESCRIPTOR", descriptor.to_string()).env("DATA", data)).finish();
    let held = hold(stream);
    cu!(cuMemFreeAsync(pointer, stream)).unwrap();
    assert_eq!(live("pooled"), 1, "the free waits for its turn");
    drop(held);
    cu!(cuStreamSynchronize(stream)).unwrap();
    cu!(cuMemPoolDestroy(pool)).unwrap();
    assert_eq!((live("pooled"), live("pool"), violations()), (0, 0, 0));
}

fn pool_importer() {
    start();
    let descriptor = ptr::without_provenance_mut(variable("DESCRIPTOR"));
    let pool = result(|out| cu!(cuMemPoolImportFromShareableHandle(out, descriptor, DESCRIPTOR, 0))).unwrap();
    let bytes = unhex(&variable::<String>("DATA")).map(|byte| byte.to_ne_bytes()[0]);
    let mut data = sys::CUmemPoolPtrExportData { reserved: bytes };
    let pointer = result(|out| cu!(cuMemPoolImportPointer(out, pool, &raw mut data))).unwrap();
    assert_eq!(read(pointer, 9).unwrap(), b"of a pool");
    let more = result(|out| cu!(cuMemAllocFromPoolAsync(out, 100, pool, ptr::null_mut())));
    assert_eq!(more, Err(CUDA_ERROR_INVALID_VALUE), "importers do not allocate");
    cu!(cuMemFreeAsync(pointer, ptr::null_mut())).unwrap();
    assert_eq!((live("pooled"), violations()), (0, 0));
}

fn fork() {
    start();
    let pointer = allocate(100).unwrap();
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = write(pointer, b"child") == Err(CUDA_ERROR_NOT_INITIALIZED)
            && cu!(cuInit(0)) == Err(CUDA_ERROR_NOT_INITIALIZED)
            && cu!(cuMemFree_v2(pointer)) == Err(CUDA_ERROR_NOT_INITIALIZED);
        std::process::exit(i32::from(!refused));
    }
    let mut status = -1;
    // SAFETY: the status is a live variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    write(pointer, b"parent").unwrap();
    cu!(cuMemFree_v2(pointer)).unwrap();
}
