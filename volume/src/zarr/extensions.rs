//! Codecs of numcodecs that zarrs lacks, or reads differently: checksums, LZ4, LZMA and delta.
//!
//! zarrs finds them by name, and calls them to encode. The names have this crate's prefix, so that they do not affect
//! other users of zarrs in the same process. To decode, `codecs` calls [`BytesExtension::unpack`], which limits the
//! unpacked length.

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, Once};

use serde_json::Value;
use zarrs::array::codec::api::{
    Codec, CodecRuntimePluginV3, PartialDecoderCapability, PartialEncoderCapability, RecommendedConcurrency,
    register_codec_v3,
};
use zarrs::array::{
    ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, CodecError, CodecMetadataOptions, CodecOptions,
    CodecTraits,
};
use zarrs::metadata::Configuration;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};

use crate::error::Cause;
use crate::unpack::Expected;
use crate::zarr::checksum::Checksum;
use crate::zarr::configuration::{CHECKSUM, DELTA, NAMES, into_configuration, is_name};
#[cfg(feature = "codecs")]
use crate::zarr::configuration::{LZ4, LZMA};
use crate::zarr::delta::Delta;
#[cfg(feature = "codecs")]
use crate::zarr::{lz4, lzma::Lzma};

/// Registers these codecs with zarrs, once for each process.
pub(super) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = register_codec_v3(CodecRuntimePluginV3::new(is_name, create));
    });
}

fn create(metadata: &MetadataV3) -> Result<Codec, PluginCreateError> {
    let configuration = Value::Object(metadata.configuration().cloned().map(Into::into).unwrap_or_default());
    let kind = match metadata.name() {
        DELTA => return Ok(Codec::ArrayToArray(Arc::new(Delta::new(configuration)?))),
        CHECKSUM => BytesKind::Checksum(Checksum::new(&configuration)?),
        #[cfg(feature = "codecs")]
        LZ4 => BytesKind::Lz4,
        #[cfg(feature = "codecs")]
        LZMA => BytesKind::Lzma(Lzma::new(&configuration)?),
        other => return Err(PluginCreateError::NameInvalid { name: other.to_owned() }),
    };
    let name = NAMES.iter().find(|name| **name == metadata.name()).copied().unwrap_or_default();
    Ok(Codec::BytesToBytes(Arc::new(BytesExtension { name, kind, configuration: into_configuration(configuration) })))
}

/// A bytes-to-bytes codec.
#[derive(Debug, Clone)]
pub(super) struct BytesExtension {
    name: &'static str,
    kind: BytesKind,
    configuration: Configuration,
}

#[derive(Debug, Clone)]
enum BytesKind {
    Checksum(Checksum),
    #[cfg(feature = "codecs")]
    Lz4,
    #[cfg(feature = "codecs")]
    Lzma(Lzma),
}

impl BytesExtension {
    /// Decodes into `into`, replacing its content.
    ///
    /// # Errors
    ///
    /// The bytes are damaged, or do not hold the expected number of bytes.
    pub(super) fn unpack(&self, packed: &[u8], expected: Expected, into: &mut Vec<u8>) -> Result<(), Cause> {
        match &self.kind {
            BytesKind::Checksum(checksum) => {
                let bytes = checksum.checked(packed)?;
                expected.check(bytes.len())?;
                into.clear();
                into.extend_from_slice(bytes);
                Ok(())
            }
            #[cfg(feature = "codecs")]
            BytesKind::Lz4 => lz4::unpack(packed, expected, into),
            #[cfg(feature = "codecs")]
            BytesKind::Lzma(lzma) => lzma.unpack(packed, expected, into),
        }
    }

    #[cfg_attr(
        not(feature = "codecs"),
        expect(clippy::unnecessary_wraps, reason = "codecs that are compiled in can fail")
    )]
    fn pack(&self, bytes: &[u8]) -> Result<Vec<u8>, Cause> {
        match &self.kind {
            BytesKind::Checksum(checksum) => Ok(checksum.added(bytes)),
            #[cfg(feature = "codecs")]
            BytesKind::Lz4 => lz4::pack(bytes),
            #[cfg(feature = "codecs")]
            BytesKind::Lzma(lzma) => lzma.pack(bytes),
        }
    }

    /// Returns the maximum packed length of `bytes` bytes.
    fn longest(&self, bytes: u64) -> u64 {
        match &self.kind {
            BytesKind::Checksum(_) => bytes.saturating_add(Checksum::BYTES),
            #[cfg(feature = "codecs")]
            // Incompressible bytes grow by 1/255 in LZ4, and by less in LZMA, plus headers.
            BytesKind::Lz4 | BytesKind::Lzma(_) => bytes.saturating_add(bytes / 128).saturating_add(1024),
        }
    }
}

impl ExtensionName for BytesExtension {
    fn name(&self, _version: ZarrVersion) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(self.name))
    }
}

impl CodecTraits for BytesExtension {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(&self, _version: ZarrVersion, _options: &CodecMetadataOptions) -> Option<Configuration> {
        Some(self.configuration.clone())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability { partial_read: false, partial_decode: false }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability { partial_encode: false }
    }
}

impl BytesToBytesCodecTraits for BytesExtension {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(&self, _decoded: &BytesRepresentation) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }

    fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
        let is_exact = matches!(self.kind, BytesKind::Checksum(_));
        match *decoded {
            BytesRepresentation::FixedSize(size) if is_exact => BytesRepresentation::FixedSize(self.longest(size)),
            BytesRepresentation::FixedSize(size) | BytesRepresentation::BoundedSize(size) => {
                BytesRepresentation::BoundedSize(self.longest(size))
            }
            BytesRepresentation::UnboundedSize => BytesRepresentation::UnboundedSize,
        }
    }

    fn encode<'a>(&self, decoded: ArrayBytesRaw<'a>, _options: &CodecOptions) -> Result<ArrayBytesRaw<'a>, CodecError> {
        self.pack(&decoded).map(Cow::Owned).map_err(|cause| CodecError::Other(cause.to_string()))
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        decoded: &BytesRepresentation,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let expected = match decoded {
            BytesRepresentation::FixedSize(size) => usize::try_from(*size).ok().map(Expected::Exactly),
            BytesRepresentation::BoundedSize(size) => usize::try_from(*size).ok().map(Expected::AtMost),
            BytesRepresentation::UnboundedSize => None,
        };
        let expected = expected.ok_or_else(|| CodecError::Other("no limit for what is packed here".to_owned()))?;
        let mut bytes = Vec::new();
        self.unpack(&encoded, expected, &mut bytes).map_err(|cause| CodecError::Other(cause.to_string()))?;
        Ok(Cow::Owned(bytes))
    }
}
