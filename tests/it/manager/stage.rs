//! A socket and a directory of arrays for one test, and the requests that the test sends to its clients.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ndarray_shm::manager::{self, Status};

use crate::support::child::{Child, ROLE, copy_program, program};
use crate::support::eventually;
use crate::support::manager_socket::ManagerSocket;

/// A socket, and a directory for arrays.
pub struct Stage {
    pub socket: ManagerSocket,
}

impl Stage {
    pub fn new() -> Self {
        let stage = Self { socket: ManagerSocket::new() };
        std::fs::create_dir(stage.arrays()).unwrap();
        stage
    }

    /// Returns the directory that holds all files of the test.
    pub fn base(&self) -> &Path {
        self.socket.directory.path()
    }

    pub fn arrays(&self) -> PathBuf {
        self.base().join("arrays")
    }

    pub fn command(&self, program: &Path, role: &str) -> Command {
        let mut command = Command::new(program);
        command.env(ROLE, role).env("NDSHM_MANAGER_SOCKET", &self.socket.path).env("NDSHM_MANAGER", program);
        command.env("NDSHM_EMULATED_DIR", self.base().join("none"));
        command
    }

    pub fn role(&self, role: &str) -> Command {
        self.command(&program(), role)
    }

    /// Starts a manager in the foreground.
    pub fn manager(&self, arguments: &[&str]) -> Child {
        let mut command = self.role("manager");
        command.args(arguments);
        let mut manager = Child::spawn(command);
        manager.expect("listens");
        manager
    }

    /// Starts a client that has not announced itself.
    pub fn client(&self) -> Child {
        let mut command = self.role("manager-client");
        command.arg(self.arrays());
        Child::spawn(command)
    }

    /// Starts a client that is known to the manager and holds an array. `clients` is how many the manager then knows.
    pub fn client_with(&self, name: &str, clients: usize) -> Child {
        let mut client = self.client();
        announce(&mut client);
        self.wait_for_clients(clients);
        hold(&mut client, name);
        assert!(self.has(name));
        client
    }

    pub fn status(&self) -> Option<Status> {
        manager::status(Some(&self.socket.path)).unwrap()
    }

    pub fn wait_for_clients(&self, clients: usize) {
        eventually("the manager knows its clients", || self.status().is_some_and(|status| status.clients == clients));
    }

    pub fn has(&self, name: &str) -> bool {
        self.arrays().join(name).exists()
    }

    /// Waits until an array is removed, prints how long that took, and asserts that it was soon.
    pub fn wait_until_gone(&self, name: &str, since: Instant) {
        eventually("the array is removed", || !self.has(name));
        let took = since.elapsed();
        println!("{name} was gone after {took:?}");
        // A manager that did not notice the death would find the array only in its sweep every ten seconds.
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
}

pub fn announce(client: &mut Child) -> Duration {
    let took = Duration::from_micros(client.ask("announce").parse().unwrap());
    // A manager may take ten seconds to start. An announcement must not wait for that.
    assert!(took < Duration::from_secs(8), "an announcement waited for a manager: {took:?}");
    took
}

pub fn hold(client: &mut Child, name: &str) {
    client.tell(format!("hold {name}"));
    client.expect("held");
}

/// Makes a copy of this program that other users can execute.
pub fn reachable(stage: &Stage) -> PathBuf {
    std::fs::set_permissions(stage.base(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let copy = stage.base().join("program");
    copy_program(&copy);
    copy
}
