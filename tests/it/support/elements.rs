//! Every element type, with values at the ends of its range.

/// Calls a generic function with a place and three values, once for each element type.
#[macro_export]
macro_rules! for_every_element_type {
    ($check:ident($place:expr)) => {{
        $check($place, [0u8, 1, u8::MAX]);
        $check($place, [0u16, 1, u16::MAX]);
        $check($place, [0u32, 1, u32::MAX]);
        $check($place, [0u64, 1, u64::MAX]);
        $check($place, [i8::MIN, -1, i8::MAX]);
        $check($place, [i16::MIN, -1, i16::MAX]);
        $check($place, [i32::MIN, -1, i32::MAX]);
        $check($place, [i64::MIN, -1, i64::MAX]);
        $check($place, [f32::MIN, -0.5, f32::INFINITY]);
        $check($place, [f64::MIN, -0.5, f64::INFINITY]);
        #[cfg(feature = "half")]
        {
            $check($place, [half::f16::MIN, half::f16::ONE, half::f16::INFINITY]);
            $check($place, [half::bf16::MIN, half::bf16::ONE, half::bf16::INFINITY]);
        }
        #[cfg(feature = "num-complex")]
        {
            $check($place, [1.0f32, 2.0, 3.0].map(|re| num_complex::Complex { re, im: -re }));
            $check($place, [1.0f64, 2.0, 3.0].map(|re| num_complex::Complex { re, im: -re }));
        }
    }};
}
