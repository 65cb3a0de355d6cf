//! A process that is stopped before and after each of its system calls: ptrace(2).

use std::io::{IoSlice, IoSliceMut};
use std::os::raw::c_long;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Where a process has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Before a system call.
    Call {
        number: i64,
        arguments: [u64; 6],
    },
    /// After one, which returned this.
    Return(i64),
    /// It has forked. The child has stopped too.
    Fork(Pid),
    /// It is about to get a signal.
    Signal(Signal),
    /// It has ended with this status, or by a signal.
    Exit(i32),
    Killed(Signal),
}

/// A process that this one traces.
#[derive(Debug)]
pub struct Tracee {
    pub pid: Pid,
    /// Whether it has ended and was waited for.
    ended: bool,
}

impl Tracee {
    /// Takes over a child that has called `PTRACE_TRACEME` and stopped itself.
    pub fn of_child(pid: Pid) -> Self {
        let tracee = Self { pid, ended: false };
        let status = waitpid(pid, Some(WaitPidFlag::__WALL)).expect("a child of this process");
        assert!(matches!(status, WaitStatus::Stopped(_, Signal::SIGSTOP)), "the child stops itself: {status:?}");
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(pid, options).expect("a traced process");
        tracee
    }

    /// Is a process that has stopped.
    pub fn of_stopped(pid: Pid) -> Self {
        Self { pid, ended: false }
    }

    /// Takes over a process that a traced one has forked.
    pub fn of_fork(pid: Pid) -> Self {
        let status = waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it is traced as its parent is");
        assert!(matches!(status, WaitStatus::Stopped(..)), "a forked child begins stopped: {status:?}");
        Self { pid, ended: false }
    }

    /// Continues until the next system call begins or ends.
    pub fn next(&mut self, signal: Option<Signal>) -> Stop {
        self.go(|pid| ptrace::syscall(pid, signal))
    }

    /// Continues until a signal comes, whatever it calls until then.
    pub fn run(&mut self) -> Stop {
        self.go(|pid| ptrace::cont(pid, None))
    }

    fn go(&mut self, go: impl Fn(Pid) -> nix::Result<()>) -> Stop {
        match go(self.pid) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => panic!("ptrace: {error}"),
        }
        match waitpid(self.pid, Some(WaitPidFlag::__WALL)).expect("a traced process") {
            WaitStatus::PtraceSyscall(_) => self.call(),
            WaitStatus::PtraceEvent(..) => {
                let child = ptrace::getevent(self.pid).expect("the child's number");
                Stop::Fork(Pid::from_raw(i32::try_from(child).expect("a process number")))
            }
            WaitStatus::Stopped(_, signal) => Stop::Signal(signal),
            WaitStatus::Exited(_, status) => {
                self.ended = true;
                Stop::Exit(status)
            }
            WaitStatus::Signaled(_, signal, _) => {
                self.ended = true;
                Stop::Killed(signal)
            }
            other => panic!("unexpected: {other:?}"),
        }
    }

    #[allow(unsafe_code)]
    fn call(&self) -> Stop {
        let info = ptrace::syscall_info(self.pid).expect("a stop at a system call");
        if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            // SAFETY: `op` says that this is the member.
            let entry = unsafe { info.u.entry };
            return Stop::Call { number: entry.nr as i64, arguments: entry.args };
        }
        // SAFETY: system calls stop at their entry and exit only.
        Stop::Return(unsafe { info.u.exit }.sval)
    }

    /// Changes registers.
    pub fn change(&self, change: impl FnOnce(&mut libc::user_regs_struct)) {
        let mut registers = ptrace::getregs(self.pid).expect("a stopped process");
        change(&mut registers);
        ptrace::setregs(self.pid, registers).expect("a stopped process");
    }

    /// Reads bytes of its memory; fewer where it has fewer.
    pub fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let from = RemoteIoVec { base: address(at), len: length };
        let read = process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes)], &[from]).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// Reads a text that ends with a zero byte.
    pub fn text(&self, at: u64) -> String {
        // To the end of the page, and one more: what lies behind may not be mapped.
        let mut bytes = Vec::new();
        let mut next = at;
        while bytes.len() < 4096 && !bytes.contains(&0) {
            let more = self.read(next, 256 - usize::try_from(next % 256).expect("below 256"));
            if more.is_empty() {
                break;
            }
            next += more.len() as u64;
            bytes.extend(more);
        }
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// Writes bytes into its memory.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let to = RemoteIoVec { base: address(at), len: bytes.len() };
        let written = process_vm_writev(self.pid, &[IoSlice::new(bytes)], &[to]);
        assert_eq!(written, Ok(bytes.len()), "memory of a stopped process");
    }

    /// Writes below its stack, where no function of it has anything.
    pub fn write_below_stack(&self, bytes: &[u8]) -> u64 {
        let at = ptrace::getregs(self.pid).expect("a stopped process").rsp - 1024;
        self.write(at, bytes);
        at
    }

    /// Has a call return this without being made. The process has stopped at its beginning.
    pub fn skip_call(&mut self, result: c_long) -> Stop {
        self.change(|registers| registers.orig_rax = u64::MAX);
        let stop = self.next(None);
        if matches!(stop, Stop::Return(_)) {
            self.change(|registers| registers.rax = result as u64);
        }
        stop
    }

    /// Has the call that has just returned be made again.
    pub fn repeat_call(&self, number: i64, arguments: &[u64; 6]) {
        let [first, second, third, fourth, fifth, sixth] = *arguments;
        self.change(|registers| {
            registers.rip -= 2; // the length of the instruction `syscall`
            registers.rax = number as u64;
            registers.rdi = first;
            registers.rsi = second;
            registers.rdx = third;
            registers.r10 = fourth;
            registers.r8 = fifth;
            registers.r9 = sixth;
        });
    }

    /// Kills it, and returns when the kernel has released everything that it had.
    pub fn kill(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let _ = kill(self.pid, Signal::SIGKILL);
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Signaled(..) | WaitStatus::Exited(..)) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.kill();
    }
}

fn address(at: u64) -> usize {
    usize::try_from(at).expect("an address")
}
