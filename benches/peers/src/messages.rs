//! The libraries that send messages: ipc-channel and iceoryx2.

use crate::Failable;

/// The crate `ipc-channel`.
#[cfg(feature = "ipc-channel")]
pub struct IpcChannel;

#[cfg(feature = "iceoryx2")]
pub use self::iceoryx::Iceoryx;

#[cfg(feature = "iceoryx2")]
mod iceoryx {
    use iceoryx2::port::listener::Listener;
    use iceoryx2::port::notifier::Notifier;
    use iceoryx2::port::publisher::Publisher;
    use iceoryx2::port::subscriber::Subscriber;
    use iceoryx2::prelude::{
        AllocationStrategy, Config, FileName, Node, NodeBuilder, Path, SemanticString, ServiceName, ipc,
    };

    use super::Failable;

    /// The crate `iceoryx2`.
    pub struct Iceoryx {
        node: Node<ipc::Service>,
    }

    type Service = iceoryx2::service::port_factory::publish_subscribe::PortFactory<ipc::Service, [u8], ()>;

    impl Iceoryx {
        pub fn new() -> Failable<Self> {
            iceoryx2::prelude::set_log_level(iceoryx2::prelude::LogLevel::Error);
            // iceoryx2 leaves its files behind. With the prefix of this run they can be found and removed.
            let mut config = Config::default();
            if let Ok(prefix) = std::env::var("BENCH_PREFIX") {
                config.global.prefix = FileName::new(prefix.as_bytes())?;
                config.global.set_root_path(&Path::new(format!("/tmp/{prefix}").as_bytes())?);
            }
            Ok(Self { node: NodeBuilder::new().config(&config).create::<ipc::Service>()? })
        }

        /// Opens or creates a service with so many subscribers, which may be so many samples late.
        fn service(&self, name: &str, subscribers: usize, late: usize) -> Failable<Service> {
            let service = self.node.service_builder(&ServiceName::new(name)?).publish_subscribe::<[u8]>();
            let service = service.max_publishers(1).max_subscribers(subscribers).subscriber_max_buffer_size(late);
            Ok(service.history_size(0).subscriber_max_borrowed_samples(1).open_or_create()?)
        }

        pub fn publisher(&self, name: &str, bytes: usize) -> Failable<Publisher<ipc::Service, [u8], ()>> {
            self.publisher_to(name, bytes, 1, 1)
        }

        pub fn publisher_to(
            &self,
            name: &str,
            bytes: usize,
            subscribers: usize,
            late: usize,
        ) -> Failable<Publisher<ipc::Service, [u8], ()>> {
            let service = self.service(name, subscribers, late)?;
            let publisher = service.publisher_builder().initial_max_slice_len(bytes);
            Ok(publisher.allocation_strategy(AllocationStrategy::Static).max_loaned_samples(1).create()?)
        }

        pub fn subscriber(&self, name: &str) -> Failable<Subscriber<ipc::Service, [u8], ()>> {
            self.subscriber_among(name, 1, 1)
        }

        pub fn subscriber_among(
            &self,
            name: &str,
            subscribers: usize,
            late: usize,
        ) -> Failable<Subscriber<ipc::Service, [u8], ()>> {
            Ok(self.service(name, subscribers, late)?.subscriber_builder().create()?)
        }

        pub fn notifier(&self, name: &str) -> Failable<Notifier<ipc::Service>> {
            let event = self.node.service_builder(&ServiceName::new(name)?).event().open_or_create()?;
            Ok(event.notifier_builder().create()?)
        }

        pub fn listener(&self, name: &str) -> Failable<Listener<ipc::Service>> {
            let event = self.node.service_builder(&ServiceName::new(name)?).event().open_or_create()?;
            Ok(event.listener_builder().create()?)
        }
    }
}
