use comm_core::wire;

use super::*;

const CODECS: [BlockCodec; 2] = [BlockCodec::Int8, BlockCodec::Int4];
const LENGTHS: [usize; 9] = [0, 1, 2, 3, 63, 64, 65, 127, 300];

/// Numbers of both signs, whose magnitudes differ by up to 2^`spread` around 2^`exponent`.
fn noise(len: usize, seed: u64, exponent: i32, spread: u64) -> Vec<f32> {
    let number = |at: u64| {
        let bits = wire::digest([seed, at]);
        let magnitude = exponent - (bits % (spread + 1)) as i32;
        (((bits >> 11) as f64 / (1_u64 << 52) as f64 - 1.0) * 2_f64.powi(magnitude)) as f32
    };
    (0..len as u64).map(number).collect()
}

fn encoded(codec: BlockCodec, elements: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xff; codec.encoded_len(elements.len())];
    codec.encode(elements, &mut bytes).unwrap();
    bytes
}

fn round_trip(codec: BlockCodec, elements: &[f32]) -> Vec<f32> {
    let mut decoded = vec![f32::MAX; elements.len()];
    codec.decode(&encoded(codec, elements), &mut decoded).unwrap();
    decoded
}

/// Returns the encoding by its definition, computed in `f64`: the scale and the integers.
fn reference(codec: BlockCodec, block: &[f32]) -> (f64, Vec<f64>) {
    let largest = block.iter().map(|element| f64::from(element.abs())).fold(0.0, f64::max);
    let scale = largest / f64::from(codec.levels());
    let integers = block.iter().map(|element| (f64::from(*element) / scale).round_ties_even());
    (scale, integers.collect())
}

#[test]
fn encodings_have_the_documented_size() {
    assert_eq!([0, 1, 64, 65, 128].map(|len| BlockCodec::Int8.encoded_len(len)), [0, 5, 68, 73, 136]);
    assert_eq!([0, 1, 2, 3, 64, 67].map(|len| BlockCodec::Int4.encoded_len(len)), [0, 5, 5, 6, 36, 42]);
    for (codec, most) in [(BlockCodec::Int8, 0.27), (BlockCodec::Int4, 0.15)] {
        assert!(codec.encoded_len(1 << 20) as f64 <= most * 4.0 * f64::from(1 << 20));
    }
}

#[test]
fn elements_are_rounded_to_the_nearest_multiple_of_the_scale() {
    for codec in CODECS {
        for len in LENGTHS {
            for (seed, spread) in [(1, 0), (2, 6), (3, 30)] {
                let elements = noise(len, seed, 3, spread);
                let decoded = round_trip(codec, &elements);
                for (block, decoded) in elements.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
                    let (scale, integers) = reference(codec, block);
                    for (integer, decoded) in integers.iter().zip(decoded) {
                        assert!((integer * scale - f64::from(*decoded)).abs() <= 1e-6 * scale * 127.0);
                    }
                }
            }
        }
    }
}

#[test]
fn ties_are_rounded_to_even() {
    for (codec, levels) in [(BlockCodec::Int8, 127), (BlockCodec::Int4, 7)] {
        // The scale is 2, so odd numbers are ties.
        let mut elements: Vec<f32> = (-30..30).map(|number| (number % levels) as f32).collect();
        elements.push(2.0 * levels as f32);
        let even = |element: &f32| (element / 2.0).round_ties_even() * 2.0;
        let expected: Vec<f32> = elements.iter().map(even).collect();
        assert_eq!(round_trip(codec, &elements), expected);
    }
}

#[test]
fn multiples_of_the_scale_are_exact_and_symmetric() {
    for (codec, levels) in [(BlockCodec::Int8, 127), (BlockCodec::Int4, 7)] {
        for exponent in [-100, -3, 0, 100] {
            let unit = 2_f32.powi(exponent);
            for start in (-levels..=levels).step_by(60) {
                let mut elements: Vec<f32> =
                    (start..=levels).take(62).map(|integer| integer as f32 * unit).collect();
                elements.extend([levels as f32 * unit, -levels as f32 * unit]);
                assert_eq!(round_trip(codec, &elements), elements);
                let negated: Vec<f32> = elements.iter().map(|element| -element).collect();
                assert_eq!(round_trip(codec, &negated), negated);
            }
        }
    }
}

#[test]
fn a_block_that_is_not_finite_is_nan_and_its_neighbours_are_not() {
    for codec in CODECS {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 63, 64, 100, 127, 128, 130] {
                let mut elements = noise(131, 5, 0, 3);
                let clean = round_trip(codec, &elements);
                elements[at] = bad;
                let decoded = round_trip(codec, &elements);
                for (position, (decoded, clean)) in decoded.iter().zip(&clean).enumerate() {
                    if position / BLOCK == at / BLOCK {
                        assert!(decoded.is_nan(), "{codec:?} {bad} at {at}: {position} is {decoded}");
                    } else {
                        assert_eq!(decoded, clean);
                    }
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for codec in CODECS {
        for len in LENGTHS {
            let decoded = round_trip(codec, &vec![-0.0; len]);
            assert!(decoded.iter().all(|element| element.to_bits() == 0));
        }
    }
}

#[test]
fn errors_are_at_most_half_a_scale_from_the_smallest_to_the_largest_floats() {
    let smallest = f32::from_bits(1);
    for codec in CODECS {
        let levels = codec.levels();
        let mut largest: Vec<f32> = (1..600).map(f32::from_bits).collect();
        largest.extend((-149..=127).map(|exponent| (2_f64.powi(exponent) * 1.7) as f32));
        largest.extend((0..600).map(|below| f32::from_bits(f32::MAX.to_bits() - below)));
        for (seed, largest) in largest.into_iter().enumerate() {
            let mut elements: Vec<f32> =
                noise(20, seed as u64, 0, 4).iter().map(|part| part * largest).collect();
            elements.extend([largest, -largest]);
            let decoded = round_trip(codec, &elements);
            // A subnormal scale was rounded up.
            let scale = f64::from(largest / levels) + f64::from(smallest);
            for (element, decoded) in elements.iter().zip(&decoded) {
                let error = (f64::from(*element) - f64::from(*decoded)).abs();
                let half = 0.5 * scale + f64::from(largest) * 1e-6;
                assert!(error <= half, "{codec:?} {largest:e}: {element:e} became {decoded:e}");
            }
        }
    }
}

#[test]
fn decoded_elements_are_added_to_a_sum() {
    for codec in CODECS {
        for len in LENGTHS {
            let (elements, mut sum) = (noise(len, 7, 0, 4), noise(len, 8, 0, 4));
            let expected: Vec<f32> =
                sum.iter().zip(round_trip(codec, &elements)).map(|(sum, decoded)| sum + decoded).collect();
            codec.decode_add(&encoded(codec, &elements), &mut sum).unwrap();
            assert_eq!(sum, expected);
        }
    }
}

#[test]
fn wrong_lengths_are_errors() {
    for codec in CODECS {
        let mut bytes = vec![0; codec.encoded_len(70)];
        for wrong in [0, 1, bytes.len() - 1] {
            assert!(codec.encode(&[1.0; 70], &mut bytes[..wrong]).is_err());
            assert!(codec.decode(&bytes[..wrong], &mut [1.0; 70]).is_err());
            assert!(codec.decode_add(&bytes[..wrong], &mut [1.0; 70]).is_err());
        }
        let long = codec.encoded_len(64);
        assert!(codec.encode(&[1.0; 70], &mut bytes).is_ok());
        assert!(codec.encode(&[1.0; 64], &mut bytes).is_err());
        assert!(
            codec.decode(&bytes, &mut [1.0; 64]).is_err()
                && codec.decode(&bytes[..long], &mut [1.0; 64]).is_ok()
        );
    }
}

#[test]
fn any_bytes_can_be_decoded() {
    for codec in CODECS {
        for seed in 0..200 {
            let len = (wire::digest([seed]) % 200) as usize;
            let bytes: Vec<u8> =
                (0..codec.encoded_len(len) as u64).map(|at| wire::digest([seed, at]) as u8).collect();
            codec.decode(&bytes, &mut vec![0.0; len]).unwrap();
        }
    }
}
